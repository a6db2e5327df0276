// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/train_text/models.h"

#include <torch/torch.h>

#include <stdexcept>

#include "examples/train_text/recurrent.h"
#include "examples/train_text/text.h"
#include "examples/train_text/transformer.h"

torch::nn::Sequential make_model(const std::string& name) {
  using torch::nn::Sequential;
  if (name == "transformer") return Sequential(Transformer(TransformerShape{.symbols = kSymbols, .length = kLength}));
  if (name == "lstm") return Sequential(Recurrent(RecurrentShape{.symbols = kSymbols}));
  throw std::runtime_error("model \"" + name + "\" is unknown; known are transformer and lstm");
}
