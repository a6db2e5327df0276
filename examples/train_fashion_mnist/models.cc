// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/train_fashion_mnist/models.h"

#include <torch/torch.h>

#include <stdexcept>

#include "examples/train_fashion_mnist/residual.h"

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
  if (name == "large-first") {
    nn::Sequential model(nn::Flatten(), nn::Linear(784, 4096), nn::ReLU(), nn::Linear(4096, 256), nn::ReLU());
    for (int layer = 0; layer < 4; ++layer) {
      model->push_back(nn::Linear(256, 256));
      model->push_back(nn::ReLU());
    }
    model->push_back(nn::Linear(256, 10));
    return model;
  }
  if (name == "large-last") {
    return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 32, 3).padding(1)), nn::ReLU(), nn::MaxPool2d(2),
                          nn::Conv2d(nn::Conv2dOptions(32, 64, 3).padding(1)), nn::ReLU(), nn::MaxPool2d(2),
                          nn::Flatten(), nn::Linear(3136, 1024), nn::ReLU(), nn::Linear(1024, 10));
  }
  if (name == "transformer") {  // each row of an image is a token
    const auto layer = nn::TransformerEncoderLayerOptions(256, 4).dim_feedforward(1024).dropout(0);
    return nn::Sequential(nn::Functional([](const torch::Tensor& x) { return x.squeeze(1).transpose(0, 1); }),
                          nn::Linear(28, 256), nn::TransformerEncoderLayer(layer), nn::TransformerEncoderLayer(layer),
                          nn::Functional([](const torch::Tensor& x) { return x.mean(0); }), nn::Linear(256, 10));
  }
  if (name == "resnet") return residual_network();
  throw std::runtime_error("model \"" + name +
                           "\" is unknown; known are vgg, resnet, mlp-small, large-first, large-last and transformer");
}
