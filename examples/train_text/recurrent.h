// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A small recurrent network that predicts the next byte (LSTM: Hochreiter and Schmidhuber, 1997). The gradients of
// its largest matrices are sums over all positions of a text.
#pragma once

#include <torch/nn.h>

struct RecurrentShape {
  int64_t symbols = 128, inputs = 64, width = 256;
};

class RecurrentImpl : public torch::nn::Module {
 public:
  explicit RecurrentImpl(const RecurrentShape& shape);

  // int64 [batch, length] -> scores [batch, length, symbols]; the state before the first byte is 0.
  torch::Tensor forward(const torch::Tensor& symbols);

 private:
  torch::nn::Embedding symbols_{nullptr};
  torch::nn::LSTM lstm_{nullptr};
  torch::nn::Linear scores_{nullptr};
};
TORCH_MODULE(Recurrent);
