// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/train_fashion_mnist/models.h"

#include <torch/torch.h>

#include <stdexcept>

namespace nn = torch::nn;

torch::nn::Sequential make_model(const std::string& name) {
  if (name == "vgg") {
    return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 32, 3).padding(1)), nn::ReLU(), nn::MaxPool2d(2),
                          nn::Conv2d(nn::Conv2dOptions(32, 64, 3).padding(1)), nn::ReLU(), nn::MaxPool2d(2),
                          nn::Flatten(), nn::Linear(3136, 2048), nn::ReLU(), nn::Linear(2048, 1024), nn::ReLU(),
                          nn::Linear(1024, 10));
  }
  if (name == "mlp-small") {
    return nn::Sequential(nn::Flatten(), nn::Linear(784, 64), nn::ReLU(), nn::Linear(64, 10));
  }
  throw std::runtime_error("model \"" + name + "\" is unknown; known are vgg and mlp-small");
}
