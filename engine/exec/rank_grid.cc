// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/rank_grid.h"

namespace gradtune::exec {

RankGrid RankGrid::flat(const core::Seat& seat, int number) {
  return RankGrid({{.size = seat.size, .index = seat.rank, .root = number % seat.size}});
}

RankGrid RankGrid::levels(const core::Seat& seat, int number) {
  return RankGrid({{.size = seat.local_size, .index = seat.local_rank, .root = number % seat.local_size},
                   {.name = "nodes", .size = seat.nodes, .index = seat.node, .root = number % seat.nodes}});
}

RankGrid RankGrid::mesh(const core::Seat& seat, int number) {
  std::vector<Dimension> dimensions;
  const auto count = static_cast<int>(core::mesh_of(seat.size).size());
  for (int d = 0; d < count; ++d) {
    const core::Subgroup ranks = core::along(core::dimension(d), seat.size);
    dimensions.push_back({.size = ranks.size, .index = ranks.index_of(seat.rank), .root = number % ranks.size});
  }
  return RankGrid(std::move(dimensions));
}

size_t RankGrid::dimension_of(core::Level level) {
  if (core::is_dimension(level)) return static_cast<size_t>(core::number_of(level));
  return level == core::Level::inter ? 1 : 0;
}

int RankGrid::shards() const {
  int shards = 1;
  for (const Dimension& dimension : dimensions_) shards *= dimension.size;
  return shards;
}

RankGrid::Part RankGrid::own_part() const {
  Part part;
  for (const Dimension& dimension : dimensions_) part.push_back(dimension.split ? dimension.index : kWhole);
  return part;
}

Range RankGrid::padded_range_of(const Part& part) const {
  Range range{0, padded_};
  for (size_t d = 0; d < part.size(); ++d) {
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

bool RankGrid::is_split_behind(size_t d) const {
  return std::any_of(dimensions_.begin() + static_cast<std::ptrdiff_t>(d) + 1, dimensions_.end(),
                     [](const Dimension& dimension) { return dimension.split; });
}

bool RankGrid::is_active(size_t except) const {
  for (size_t d = 0; d < dimensions_.size(); ++d) {
    if (d != except && dimensions_[d].rooted && dimensions_[d].index != dimensions_[d].root) return false;
  }
  return true;
}

}  // namespace gradtune::exec
