// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/train_synthetic/models.h"

#include <torch/torch.h>

#include <stdexcept>

#include "examples/train_synthetic/resnet50.h"
#include "examples/train_text/transformer.h"

namespace {

torch::Tensor cross_entropy(const torch::Tensor& scores, const torch::Tensor& targets) {
  return torch::nn::functional::cross_entropy(scores, targets);
}

SyntheticJob text_job(const TransformerShape& shape, torch::Device device) {
  const auto loss = [shape, device](torch::nn::Sequential& model, int64_t batch) {
    const torch::Tensor text =
        torch::randint(shape.symbols, {batch, shape.length + 1}, torch::dtype(torch::kLong).device(device));
    const torch::Tensor scores = model->forward(text.slice(1, 0, shape.length));
    return cross_entropy(scores.view({-1, shape.symbols}), text.slice(1, 1).reshape({-1}));
  };
  return {torch::nn::Sequential(Transformer(shape)), loss};
}

SyntheticJob image_job(torch::Device device) {
  const auto loss = [device](torch::nn::Sequential& model, int64_t batch) {
    const torch::Tensor images = torch::randn({batch, 3, 224, 224}, device);
    return cross_entropy(model->forward(images),
                         torch::randint(1000, {batch}, torch::dtype(torch::kLong).device(device)));
  };
  return {resnet50(), loss};
}

}  // namespace

SyntheticJob make_job(const std::string& name, int64_t length, torch::Device device) {
  SyntheticJob job;
  if (name == "gpt2") {
    job = text_job({.symbols = 50'257, .length = length, .width = 768, .heads = 12, .layers = 12}, device);
  } else if (name == "tiny") {
    job = text_job({.symbols = 1'000, .length = length, .width = 64, .heads = 4, .layers = 2}, device);
  } else if (name == "resnet50") {
    job = image_job(device);
  } else {
    throw std::runtime_error("model \"" + name + "\" is unknown; known are gpt2, resnet50 and tiny");
  }
  job.model->to(device);
  return job;
}
