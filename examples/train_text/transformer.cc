// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/train_text/transformer.h"

#include <torch/torch.h>

#include <cmath>
#include <limits>

namespace nn = torch::nn;

TransformerLayerImpl::TransformerLayerImpl(const TransformerShape& shape) : width_(shape.width), heads_(shape.heads) {
  norm_ = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width_})));
  inputs_ = register_module("inputs", nn::Linear(width_, 3 * width_));
  outputs_ = register_module("outputs", nn::Linear(width_, width_));
  wide_norm_ = register_module("wide_norm", nn::LayerNorm(nn::LayerNormOptions({width_})));
  wide_ = register_module("wide", nn::Linear(width_, 4 * width_));
  narrow_ = register_module("narrow", nn::Linear(4 * width_, width_));
}

torch::Tensor TransformerLayerImpl::attend(const torch::Tensor& x, const torch::Tensor& hidden) {
  const int64_t batch = x.size(0), length = x.size(1), of_head = width_ / heads_;
  const torch::Tensor all = inputs_->forward(x).view({batch, length, 3, heads_, of_head}).permute({2, 0, 3, 1, 4});
  const torch::Tensor scores =
      torch::matmul(all[0], all[1].transpose(-1, -2)) / std::sqrt(static_cast<double>(of_head)) +
      hidden.slice(0, 0, length).slice(1, 0, length);
  const torch::Tensor seen = torch::matmul(scores.softmax(-1), all[2]);
  return outputs_->forward(seen.transpose(1, 2).reshape({batch, length, width_}));
}

torch::Tensor TransformerLayerImpl::forward(const torch::Tensor& x, const torch::Tensor& hidden) {
  const torch::Tensor attended = x + attend(norm_->forward(x), hidden);
  return attended + narrow_->forward(torch::gelu(wide_->forward(wide_norm_->forward(attended))));
}

TransformerImpl::TransformerImpl(const TransformerShape& shape) {
  const int64_t width = shape.width;
  symbols_ = register_module("symbols", nn::Embedding(shape.symbols, width));
  places_ = register_module("places", nn::Embedding(shape.length, width));
  layers_ = register_module("layers", nn::ModuleList());
  for (int64_t i = 0; i < shape.layers; ++i) layers_->push_back(TransformerLayer(shape));
  norm_ = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})));
  scores_ = register_module("scores", nn::Linear(width, shape.symbols));
  hidden_ = torch::full({shape.length, shape.length}, -std::numeric_limits<float>::infinity()).triu(1);
  const torch::NoGradGuard no_grad;
  symbols_->weight.mul_(0.02);
  places_->weight.mul_(0.02);
}

torch::Tensor TransformerImpl::forward(const torch::Tensor& symbols) {
  if (hidden_.device() != symbols.device()) hidden_ = hidden_.to(symbols.device());
  torch::Tensor x = symbols_->forward(symbols) + places_->forward(torch::arange(symbols.size(1), symbols.options()));
  for (const auto& layer : *layers_) x = layer->as<TransformerLayer>()->forward(x, hidden_);
  return scores_->forward(norm_->forward(x));
}
