// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/hooks/fake_lstm.h"

#include <torch/types.h>

#include <vector>

namespace gradtune::test {
namespace {

at::Tensor or_zero(const std::optional<at::Tensor>& gradient, const at::Tensor& like) {
  return gradient && gradient->defined() ? *gradient : at::zeros_like(like);
}

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates,
                                                         const at::Tensor& state,
                                                         const std::optional<at::Tensor>& input_bias,
                                                         const std::optional<at::Tensor>& hidden_bias) {
  at::Tensor gates = input_gates + hidden_gates;
  if (input_bias && input_bias->defined()) gates = gates + *input_bias + *hidden_bias;
  const std::vector<at::Tensor> parts = gates.chunk(4, 1);
  const at::Tensor in = parts[0].sigmoid(), forget = parts[1].sigmoid(), cell = parts[2].tanh(),
                   out = parts[3].sigmoid();
  const at::Tensor next = forget * state + in * cell;
  return {out * next.tanh(), next, at::cat({in, forget, cell, out}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(const std::optional<at::Tensor>& of_output,
                                                                  const std::optional<at::Tensor>& of_next,
                                                                  const at::Tensor& state, const at::Tensor& next,
                                                                  const at::Tensor& gates, bool has_bias) {
  const std::vector<at::Tensor> parts = gates.chunk(4, 1);
  const at::Tensor &in = parts[0], &forget = parts[1], &cell = parts[2], &out = parts[3];
  const at::Tensor output = or_zero(of_output, next), squashed = next.tanh();
  const at::Tensor whole = or_zero(of_next, next) + output * out * (1 - squashed * squashed);
  const at::Tensor of_gates = at::cat({whole * cell * in * (1 - in), whole * state * forget * (1 - forget),
                                       whole * in * (1 - cell * cell), output * squashed * out * (1 - out)},
                                      1);
  return {of_gates, whole * forget, has_bias ? of_gates.sum(0) : at::Tensor()};
}

}  // namespace gradtune::test
