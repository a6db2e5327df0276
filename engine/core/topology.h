// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Where ranks sit. Ranks of one node share memory or a fast link; between nodes there is the network. Hierarchical
// programs need nodes of equally many ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/core/result.h"

namespace gradtune::core {

// Which ranks a collective is over: all of them; those of this rank's node; those that have this rank's position in
// their nodes, one of each node; and, from dim0 on, those along one dimension of the mesh of all ranks.
enum class Level : uint8_t { flat, intra, inter, dim0 };

constexpr int kMostDimensions = 30;
constexpr int kLevels = static_cast<int>(Level::dim0) + kMostDimensions;
constexpr Level dimension(int number) { return static_cast<Level>(static_cast<int>(Level::dim0) + number); }
constexpr bool is_dimension(Level level) { return level >= Level::dim0; }
constexpr int number_of(Level dimension) { return static_cast<int>(dimension) - static_cast<int>(Level::dim0); }

// The dimensions of the mesh of so many ranks: their prime factors, the largest first. Ranks are numbered along the
// first dimension first. Of 8 ranks it is a hypercube; 6 are 3 x 2, and prime numbers have one dimension.
std::vector<int> mesh_of(int ranks);

// Ranks that are equally far apart, such as those along a dimension.
struct Subgroup {
  int size = 1, stride = 1;

  int index_of(int rank) const { return rank / stride % size; }
  int rank_at(int index, int of_rank) const { return of_rank + (index - index_of(of_rank)) * stride; }

  bool operator==(const Subgroup&) const = default;
};

// Those along that dimension of the mesh, one rank where the mesh has fewer dimensions.
Subgroup along(Level dimension, int ranks);

// How many ranks there are, and in each node where there are levels (else 0).
struct Ranks {
  int size = 1;
  int local_size = 0;

  bool has_levels() const { return local_size > 0; }
  bool has(Level level) const;
  int of(Level level) const;  // one that there is

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
