// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// All that differs in C++ between versions of LibTorch, with a sentence for each difference.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace gradtune::versions {

// A std::shared_ptr up to LibTorch 2.11; LibTorch 2.15 counts the owners of a node in the node itself.
using NodePointer = decltype(torch::autograd::impl::grad_accumulator(std::declval<const torch::autograd::Variable&>()));

}  // namespace gradtune::versions
