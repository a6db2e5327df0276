// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Arenas: gradients of one kind (dtype, and the space that they lie in) side by side, without gaps, in the order of
// the table. An arena is identified by its number. Data that belongs to gradients (residuals, owners of residuals)
// has arenas of the same numbers, lengths and order.
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

// The arena of a tensor and its first element there.
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

// The name of an arena in files, which does not depend on the space of its memory: the dtype, with a number where
// several arenas have that dtype.
std::string name_of(const ArenaLayout& layout, size_t arena);

// More arenas than a table's dtypes and spaces can make; a larger number in a file is an error.
constexpr int32_t kMostArenas = 16;

}  // namespace gradtune::core
