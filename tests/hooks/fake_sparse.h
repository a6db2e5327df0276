// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Operators with sparse tensors (COO) of the fake device. LibTorch's own fallback to the CPU does not know them.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace gradtune::test {

// Copies all tensors to the CPU, calls the CPU's operator, and copies the results, and what was changed, back.
void sparse_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace gradtune::test
