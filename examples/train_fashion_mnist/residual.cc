// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/train_fashion_mnist/residual.h"

#include <torch/torch.h>

namespace nn = torch::nn;

namespace {

nn::Conv2d convolution(int64_t inputs, int64_t outputs, int64_t size, int64_t stride) {
  return nn::Conv2d(nn::Conv2dOptions(inputs, outputs, size).stride(stride).padding(size / 2).bias(false));
}

}  // namespace

ResidualBlockImpl::ResidualBlockImpl(int64_t inputs, int64_t outputs, int64_t stride)
    : convolutions_(convolution(inputs, outputs, 3, stride), nn::BatchNorm2d(outputs), nn::ReLU(),
                    convolution(outputs, outputs, 3, 1), nn::BatchNorm2d(outputs)),
      skip_(nn::Identity()) {
  if (inputs != outputs || stride > 1) {
    skip_ = nn::Sequential(convolution(inputs, outputs, 1, stride), nn::BatchNorm2d(outputs));
  }
  register_module("convolutions", convolutions_);
  register_module("skip", skip_);
}

torch::Tensor ResidualBlockImpl::forward(const torch::Tensor& x) {
  return torch::relu(convolutions_->forward(x) + skip_->forward(x));
}

torch::nn::Sequential residual_network() {
  return nn::Sequential(convolution(1, 32, 3, 2), nn::BatchNorm2d(32), nn::ReLU(), ResidualBlock(32, 32, 1),
                        ResidualBlock(32, 64, 2), ResidualBlock(64, 128, 2), nn::AdaptiveAvgPool2d(1), nn::Flatten(),
                        nn::Linear(128, 10));
}
