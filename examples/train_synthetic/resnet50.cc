// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/train_synthetic/resnet50.h"

#include <torch/torch.h>

#include "examples/support/residual.h"

namespace nn = torch::nn;

namespace {

Residual bottleneck(int64_t inputs, int64_t width, int64_t stride) {
  const nn::Sequential convolutions(convolution(inputs, width, 1, 1), nn::BatchNorm2d(width), nn::ReLU(),
                                    convolution(width, width, 3, stride), nn::BatchNorm2d(width), nn::ReLU(),
                                    convolution(width, 4 * width, 1, 1), nn::BatchNorm2d(4 * width));
  return Residual(convolutions, inputs, 4 * width, stride);
}

}  // namespace

nn::Sequential resnet50() {
  nn::Sequential model(convolution(3, 64, 7, 2), nn::BatchNorm2d(64), nn::ReLU(),
                       nn::MaxPool2d(nn::MaxPool2dOptions(3).stride(2).padding(1)));
  int64_t inputs = 64, width = 64;
  for (const int64_t blocks : {3, 4, 6, 3}) {
    for (int64_t block = 0; block < blocks; ++block) {
      model->push_back(bottleneck(inputs, width, block == 0 && width > 64 ? 2 : 1));
      inputs = 4 * width;
    }
    width *= 2;
  }
  model->push_back(nn::AdaptiveAvgPool2d(1));
  model->push_back(nn::Flatten());
  model->push_back(nn::Linear(2048, 1000));
  return model;
}
