// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Arenas: gradients of one kind (dtype, and the space that they lie in) side by side, without gaps, in the table's
// order. An arena is known by its number. What belongs to gradients (residuals, owners of residuals) has arenas of the
// same numbers, lengths and order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/gradient_table.h"
#include "engine/core/space.h"

namespace gradtune::core {

struct ArenaInfo {
  DType dtype = DType::f32;
  Space space = Space::host;
  int64_t numel = 0;

  bool operator==(const ArenaInfo&) const = default;
};

// Where in its arena a tensor begins. Elements.
struct TensorPlace {
  int32_t arena = 0;
  int64_t begin = 0;

  bool operator==(const TensorPlace&) const = default;
};

struct ArenaLayout {
  std::vector<ArenaInfo> arenas;     // by number: those that the table needs, by dtype, then by space
  std::vector<TensorPlace> tensors;  // by position in the table

  const ArenaInfo& of_tensor(size_t position) const { return arenas[static_cast<size_t>(tensors[position].arena)]; }

  bool operator==(const ArenaLayout&) const = default;
};

ArenaLayout lay_arenas(const GradientTable& table);

// Names an arena in files, the same wherever its memory lies: its dtype, with a number where several have that.
std::string name_of(const ArenaLayout& layout, size_t arena);

// More than a table has of dtypes and spaces; what a file names beyond is an error.
constexpr int32_t kMostArenas = 16;

}  // namespace gradtune::core
