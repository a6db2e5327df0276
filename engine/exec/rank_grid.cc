// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/rank_grid.h"

#include <algorithm>

namespace gradtune::exec {

RankGrid RankGrid::flat(const core::Seat& seat, int number) {
  RankGrid grid;
  grid.dimensions_[0] = {.size = seat.size, .index = seat.rank, .root = number % seat.size};
  grid.dimensions_[1] = {.summed = true};
  return grid;
}

RankGrid RankGrid::levels(const core::Seat& seat, int number) {
  RankGrid grid;
  grid.dimensions_[0] = {.size = seat.local_size, .index = seat.local_rank, .root = number % seat.local_size};
  grid.dimensions_[1] = {.size = seat.nodes, .index = seat.node, .root = number % seat.nodes};
  return grid;
}

RankGrid::Part RankGrid::own_part() const {
  Part part;
  for (size_t d = 0; d < 2; ++d) part[d] = dimensions_[d].split ? dimensions_[d].index : kWhole;
  return part;
}

Range RankGrid::padded_range_of(const Part& part) const {
  Range range{0, padded_};
  for (size_t d = 0; d < 2; ++d) {
    if (part[d] == kWhole) continue;
    range.length /= dimensions_[d].size;
    range.begin += part[d] * range.length;
  }
  return range;
}

Range RankGrid::range_of(const Part& part) const {
  const Range padded = padded_range_of(part);
  const int64_t begin = std::min(padded.begin, numel_);
  return {begin, std::min(padded.begin + padded.length, numel_) - begin};
}

bool RankGrid::is_active(size_t except) const {
  for (size_t d = 0; d < 2; ++d) {
    if (d != except && dimensions_[d].rooted && dimensions_[d].index != dimensions_[d].root) return false;
  }
  return true;
}

}  // namespace gradtune::exec
