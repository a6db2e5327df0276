// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/support/residual.h"

#include <torch/torch.h>

#include <utility>

namespace nn = torch::nn;

nn::Conv2d convolution(int64_t inputs, int64_t outputs, int64_t size, int64_t stride) {
  return nn::Conv2d(nn::Conv2dOptions(inputs, outputs, size).stride(stride).padding(size / 2).bias(false));
}

ResidualImpl::ResidualImpl(nn::Sequential convolutions, int64_t inputs, int64_t outputs, int64_t stride)
    : convolutions_(std::move(convolutions)), skip_(nn::Identity()) {
  if (inputs != outputs || stride > 1) {
    skip_ = nn::Sequential(convolution(inputs, outputs, 1, stride), nn::BatchNorm2d(outputs));
  }
  register_module("convolutions", convolutions_);
  register_module("skip", skip_);
}

torch::Tensor ResidualImpl::forward(const torch::Tensor& x) {
  return torch::relu(convolutions_->forward(x) + skip_->forward(x));
}
