// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/train_text/transformer.h"

#include <torch/torch.h>

#include <cmath>
#include <limits>

TransformerImpl::TransformerImpl(const TransformerShape& shape) : shape_(shape) {
  namespace nn = torch::nn;
  const int64_t width = shape.width;
  symbols_ = register_module("symbols", nn::Embedding(shape.symbols, width));
  places_ = register_module("places", nn::Embedding(shape.length, width));
  for (int64_t i = 0; i < shape.layers; ++i) {
    const std::string name = "layer" + std::to_string(i) + "_";
    Layer layer;
    layer.norm = register_module(name + "norm", nn::LayerNorm(nn::LayerNormOptions({width})));
    layer.inputs = register_module(name + "inputs", nn::Linear(width, 3 * width));
    layer.outputs = register_module(name + "outputs", nn::Linear(width, width));
    layer.wide_norm = register_module(name + "wide_norm", nn::LayerNorm(nn::LayerNormOptions({width})));
    layer.wide = register_module(name + "wide", nn::Linear(width, 4 * width));
    layer.narrow = register_module(name + "narrow", nn::Linear(4 * width, width));
    layers_.push_back(std::move(layer));
  }
  norm_ = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})));
  scores_ = register_module("scores", nn::Linear(width, shape.symbols));
  hidden_ = torch::full({shape.length, shape.length}, -std::numeric_limits<float>::infinity()).triu(1);
  const torch::NoGradGuard no_grad;
  symbols_->weight.mul_(0.02);
  places_->weight.mul_(0.02);
}

torch::Tensor TransformerImpl::attend(Layer& layer, const torch::Tensor& x) const {
  const int64_t batch = x.size(0), length = x.size(1), of_head = shape_.width / shape_.heads;
  const torch::Tensor all =
      layer.inputs->forward(x).view({batch, length, 3, shape_.heads, of_head}).permute({2, 0, 3, 1, 4});
  const torch::Tensor scores =
      torch::matmul(all[0], all[1].transpose(-1, -2)) / std::sqrt(static_cast<double>(of_head)) +
      hidden_.slice(0, 0, length).slice(1, 0, length);
  const torch::Tensor seen = torch::matmul(scores.softmax(-1), all[2]);
  return layer.outputs->forward(seen.transpose(1, 2).reshape({batch, length, shape_.width}));
}

torch::Tensor TransformerImpl::forward(const torch::Tensor& symbols) {
  if (hidden_.device() != symbols.device()) hidden_ = hidden_.to(symbols.device());
  torch::Tensor x = symbols_->forward(symbols) + places_->forward(torch::arange(symbols.size(1), symbols.options()));
  for (Layer& layer : layers_) {
    x = x + attend(layer, layer.norm->forward(x));
    x = x + layer.narrow->forward(torch::gelu(layer.wide->forward(layer.wide_norm->forward(x))));
  }
  return scores_->forward(norm_->forward(x));
}
