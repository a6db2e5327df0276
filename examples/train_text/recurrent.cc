// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/train_text/recurrent.h"

#include <torch/torch.h>

RecurrentImpl::RecurrentImpl(const RecurrentShape& shape) {
  namespace nn = torch::nn;
  symbols_ = register_module("symbols", nn::Embedding(shape.symbols, shape.inputs));
  lstm_ = register_module("lstm", nn::LSTM(nn::LSTMOptions(shape.inputs, shape.width).batch_first(true)));
  scores_ = register_module("scores", nn::Linear(shape.width, shape.symbols));
}

torch::Tensor RecurrentImpl::forward(const torch::Tensor& symbols) {
  return scores_->forward(std::get<0>(lstm_->forward(symbols_->forward(symbols))));
}
