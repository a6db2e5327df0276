// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The topology of ranks. Ranks of one node share memory or a fast link; nodes are connected by the network.
// Hierarchical programs need nodes with equally many ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/core/result.h"

namespace gradtune::core {

// The group of a collective. `flat`: all ranks. `intra`: the ranks of this rank's node. `inter`: the ranks with this
// rank's position in their nodes, one of each node. From `dim0` on: the ranks along one dimension of the mesh of all
// ranks.
enum class Level : uint8_t { flat, intra, inter, dim0 };

constexpr int kMostDimensions = 30;
constexpr int kLevels = static_cast<int>(Level::dim0) + kMostDimensions;
constexpr Level dimension(int number) { return static_cast<Level>(static_cast<int>(Level::dim0) + number); }
constexpr bool is_dimension(Level level) { return level >= Level::dim0; }
constexpr int number_of(Level dimension) { return static_cast<int>(dimension) - static_cast<int>(Level::dim0); }

// The dimensions of the mesh of `ranks` ranks: their prime factors, the largest first. Ranks are numbered along the
// first dimension first. For 8 ranks it is a hypercube; 6 are 3 x 2, and prime numbers have one dimension.
std::vector<int> mesh_of(int ranks);

// Ranks at equal distances, such as those along a dimension.
struct Subgroup {
  int size = 1, stride = 1;

  int index_of(int rank) const { return rank / stride % size; }
  int rank_at(int index, int of_rank) const { return of_rank + (index - index_of(of_rank)) * stride; }

  bool operator==(const Subgroup&) const = default;
};

// The ranks along that dimension of the mesh; a single rank if the mesh has fewer dimensions.
Subgroup along(Level dimension, int ranks);

// The number of ranks, and of those in each node if there are levels (otherwise 0).
struct Ranks {
  int size = 1;
  int local_size = 0;

  bool has_levels() const { return local_size > 0; }
  bool has(Level level) const;
  int of(Level level) const;  // of a level that exists

  bool operator==(const Ranks&) const = default;
};

// The seat of one rank: its position among all ranks and in its node, and the position of its node.
struct Seat {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 0;
  int node = 0, nodes = 0;

  // True if there are levels; false if the nodes are not known, or are not of equal size.
  bool has_levels() const { return nodes > 0 && nodes * local_size == size; }

  Ranks ranks() const { return {size, has_levels() ? local_size : 0}; }

  bool operator==(const Seat&) const = default;
};

// A seat among ranks that are numbered node by node.
inline Seat seat(int rank, int size, int local_size) {
  check(local_size > 0 && size % local_size == 0, "nodes have equally many ranks");
  return {rank, size, rank % local_size, local_size, rank / local_size, size / local_size};
}

// The seat of a rank, given the node of each rank (any numbers; equal numbers mean the same node). Nodes are
// numbered in the order of their first ranks. The seat has no levels if nodes differ in size, if there is one node,
// or if each node has one rank.
Seat find_seat(int rank, std::span<const uint64_t> node_of_rank);

}  // namespace gradtune::core
