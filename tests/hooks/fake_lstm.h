// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The cell of an LSTM on the fake device. LibTorch calls one operator for it on devices other than the CPU, which the
// CPU does not have, so that the fallback to the CPU fails.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace gradtune::test {

// Gates are [batch, 4 x hidden] before they are activated. Returns the output, the next state, and the activated gates.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates,
                                                         const at::Tensor& state,
                                                         const std::optional<at::Tensor>& input_bias,
                                                         const std::optional<at::Tensor>& hidden_bias);

// Gradients of the gates, the state and a bias, which is undefined without biases.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(const std::optional<at::Tensor>& of_output,
                                                                  const std::optional<at::Tensor>& of_next,
                                                                  const at::Tensor& state, const at::Tensor& next,
                                                                  const at::Tensor& gates, bool has_bias);

}  // namespace gradtune::test
