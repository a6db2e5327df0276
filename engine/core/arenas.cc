// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/core/arenas.h"

#include <algorithm>
#include <tuple>

namespace gradtune::core {

ArenaLayout lay_arenas(const GradientTable& table) {
  ArenaLayout layout;
  const auto find = [&](const TensorInfo& tensor) {
    return std::ranges::find_if(layout.arenas, [&](const ArenaInfo& arena) {
      return arena.dtype == tensor.dtype && arena.space == tensor.space;
    });
  };
  for (const TensorInfo& tensor : table.tensors) {
    if (find(tensor) == layout.arenas.end()) layout.arenas.push_back({.dtype = tensor.dtype, .space = tensor.space});
  }
  std::ranges::sort(layout.arenas, {}, [](const ArenaInfo& arena) { return std::tuple(arena.dtype, arena.space); });
  for (const TensorInfo& tensor : table.tensors) {
    const auto arena = find(tensor);
    layout.tensors.push_back({static_cast<int32_t>(arena - layout.arenas.begin()), arena->numel});
    arena->numel += tensor.numel;
  }
  return layout;
}

std::string name_of(const ArenaLayout& layout, size_t arena) {
  const DType dtype = layout.arenas[arena].dtype;
  const auto before = std::count_if(layout.arenas.begin(), layout.arenas.begin() + static_cast<std::ptrdiff_t>(arena),
                                    [dtype](const ArenaInfo& other) { return other.dtype == dtype; });
  return std::string(to_string(dtype)) + (before == 0 ? "" : " " + std::to_string(before + 1));
}

}  // namespace gradtune::core
