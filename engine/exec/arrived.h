// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The result of a backward pass for one tensor, in one step on one rank. The memory belongs to the caller;
// Executor::tensor_ready says for how long it is needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gradtune::exec {

struct Arrived {
  enum class Kind : uint8_t {
    in_place,  // the gradient is in its place in the arena
    dense,     // the gradient lies at `values`, laid out as in the arena
    rows,      // rows of a matrix: `rows` are their numbers, in any order and repeated if they are to be added up, and
               // `values` has one row for each; all other rows are zero
    none,      // there is no gradient: zeros
  } kind = Kind::in_place;
  const std::byte* values = nullptr;  // of the tensor's dtype
  std::span<const int64_t> rows = {};
  std::span<const int64_t> order = {};  // positions in `rows`, in the order of adding them; empty: as they stand

  static Arrived dense_at(const std::byte* values) { return {.kind = Kind::dense, .values = values}; }
};

}  // namespace gradtune::exec
