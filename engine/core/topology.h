// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Where ranks sit. Ranks of one node share memory or a fast link; between nodes there is the network. Hierarchical
// programs need nodes of equally many ranks.
#pragma once

#include <cstdint>
#include <span>

#include "engine/core/result.h"

namespace gradtune::core {

// Which ranks a collective is over: all of them; those of this rank's node; those that have this rank's position in
// their nodes, one of each node.
enum class Level : uint8_t { flat, intra, inter };

// How many ranks there are, and in each node where there are levels (else 0).
struct Ranks {
  int size = 1;
  int local_size = 0;

  bool has_levels() const { return local_size > 0; }
  int of(Level level) const {
    return level == Level::flat ? size : level == Level::intra ? local_size : size / local_size;
  }

  bool operator==(const Ranks&) const = default;
};

// One rank's seat: its position among all ranks, in its node, and that of its node.
struct Seat {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 0;
  int node = 0, nodes = 0;

  // Whether there are levels: false where nodes are not known, or not alike.
  bool has_levels() const { return nodes > 0 && nodes * local_size == size; }

  Ranks ranks() const { return {size, has_levels() ? local_size : 0}; }

  bool operator==(const Seat&) const = default;
};

// A seat among ranks that are numbered node by node.
inline Seat seat(int rank, int size, int local_size) {
  check(local_size > 0 && size % local_size == 0, "nodes have equally many ranks");
  return {rank, size, rank % local_size, local_size, rank / local_size, size / local_size};
}

// The seat of a rank, given the node of each (any numbers, alike where ranks share a node). Nodes count in the order of
// their first ranks. Without levels where nodes are not alike, or where there is one node or one rank in each.
Seat find_seat(int rank, std::span<const uint64_t> node_of_rank);

}  // namespace gradtune::core
