// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A small transformer that predicts the next byte (Vaswani et al., NeurIPS 2017; norms come first, as in GPT-2).
#pragma once

#include <torch/nn.h>

struct TransformerShape {
  int64_t symbols = 128, length = 64, width = 128, heads = 4, layers = 2;
};

class TransformerImpl : public torch::nn::Module {
 public:
  explicit TransformerImpl(const TransformerShape& shape);

  // int64 [batch, length] -> scores [batch, length, symbols].
  torch::Tensor forward(const torch::Tensor& symbols);

 private:
  struct Layer {
    torch::nn::LayerNorm norm{nullptr}, wide_norm{nullptr};
    torch::nn::Linear inputs{nullptr}, outputs{nullptr}, wide{nullptr}, narrow{nullptr};
  };
  torch::Tensor attend(Layer& layer, const torch::Tensor& x) const;

  const TransformerShape shape_;
  torch::nn::Embedding symbols_{nullptr}, places_{nullptr};
  std::vector<Layer> layers_;
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::Linear scores_{nullptr};
  torch::Tensor hidden_;  // [length, length]: masks later positions
};
TORCH_MODULE(Transformer);
