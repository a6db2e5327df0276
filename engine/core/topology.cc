// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/core/topology.h"

#include <algorithm>
#include <vector>

namespace gradtune::core {

std::vector<int> mesh_of(int ranks) {
  std::vector<int> sizes;
  for (int factor = 2; ranks > 1; ++factor) {
    if (factor > ranks / factor) factor = ranks;  // it is prime
    for (; ranks % factor == 0; ranks /= factor) sizes.push_back(factor);
  }
  std::ranges::reverse(sizes);
  return sizes;
}

Subgroup along(Level dimension, int ranks) {
  int stride = 1, number = number_of(dimension);
  for (const int size : mesh_of(ranks)) {
    if (number-- == 0) return {size, stride};
    stride *= size;
  }
  return {1, stride};
}

bool Ranks::has(Level level) const {
  if (is_dimension(level)) return number_of(level) < static_cast<int>(mesh_of(size).size());
  return level == Level::flat || has_levels();
}

int Ranks::of(Level level) const {
  if (is_dimension(level)) return along(level, size).size;
  return level == Level::flat ? size : level == Level::intra ? local_size : size / local_size;
}

Seat find_seat(int rank, std::span<const uint64_t> node_of_rank) {
  const auto size = static_cast<int>(node_of_rank.size());
  std::vector<uint64_t> nodes;
  std::vector<int> ranks_of_node, local_rank, node_number;
  for (const uint64_t node : node_of_rank) {
    const auto found = std::find(nodes.begin(), nodes.end(), node);
    const auto number = static_cast<size_t>(found - nodes.begin());
    if (found == nodes.end()) {
      nodes.push_back(node);
      ranks_of_node.push_back(0);
    }
    node_number.push_back(static_cast<int>(number));
    local_rank.push_back(ranks_of_node[number]++);
  }
  const bool alike = std::all_of(ranks_of_node.begin(), ranks_of_node.end(),
                                 [&](int ranks) { return ranks == ranks_of_node.front(); });
  if (!alike || nodes.size() == 1 || ranks_of_node.front() == 1) return {.rank = rank, .size = size};
  const auto at = static_cast<size_t>(rank);
  return {rank, size, local_rank[at], ranks_of_node.front(), node_number[at], static_cast<int>(nodes.size())};
}

}  // namespace gradtune::core
