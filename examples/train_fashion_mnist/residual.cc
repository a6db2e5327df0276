// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/train_fashion_mnist/residual.h"

#include <torch/torch.h>

#include "examples/support/residual.h"

namespace nn = torch::nn;

namespace {

Residual block(int64_t inputs, int64_t outputs, int64_t stride) {
  const nn::Sequential convolutions(convolution(inputs, outputs, 3, stride), nn::BatchNorm2d(outputs), nn::ReLU(),
                                    convolution(outputs, outputs, 3, 1), nn::BatchNorm2d(outputs));
  return Residual(convolutions, inputs, outputs, stride);
}

}  // namespace

torch::nn::Sequential residual_network() {
  return nn::Sequential(convolution(1, 32, 3, 2), nn::BatchNorm2d(32), nn::ReLU(), block(32, 32, 1), block(32, 64, 2),
                        block(64, 128, 2), nn::AdaptiveAvgPool2d(1), nn::Flatten(), nn::Linear(128, 10));
}
