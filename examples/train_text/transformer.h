// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A small transformer that predicts the next byte (Vaswani et al., NeurIPS 2017; norms come first, as in GPT-2).
#pragma once

#include <torch/nn.h>

struct TransformerShape {
  int64_t symbols = 128, length = 64, width = 128, heads = 4, layers = 2;
};

// Attention, then two wide layers, each behind a norm and added to its input.
class TransformerLayerImpl : public torch::nn::Module {
 public:
  explicit TransformerLayerImpl(const TransformerShape& shape);

  // [batch, length, width] -> the same shape. `hidden` is added to scores of attention: -infinity at later positions.
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& hidden);

 private:
  torch::Tensor attend(const torch::Tensor& x, const torch::Tensor& hidden);

  const int64_t width_, heads_;
  torch::nn::LayerNorm norm_{nullptr}, wide_norm_{nullptr};
  torch::nn::Linear inputs_{nullptr}, outputs_{nullptr}, wide_{nullptr}, narrow_{nullptr};
};
TORCH_MODULE(TransformerLayer);

// Its parameters have the names of the same model in Python (tests/bench/support/text_job.py).
class TransformerImpl : public torch::nn::Module {
 public:
  explicit TransformerImpl(const TransformerShape& shape);

  // int64 [batch, length] -> scores [batch, length, symbols].
  torch::Tensor forward(const torch::Tensor& symbols);

 private:
  torch::nn::Embedding symbols_{nullptr}, places_{nullptr};
  torch::nn::ModuleList layers_{nullptr};
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::Linear scores_{nullptr};
  torch::Tensor hidden_;  // [length, length]: masks later positions
};
TORCH_MODULE(Transformer);
