// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The ranks of a bucket's collectives, in one or more dimensions: all of them; those of a node and the nodes; or the
// dimensions of the mesh of all ranks. Each dimension records the effect of the steps so far, and so determines the
// range of the bucket that a rank has. Private to program.cc.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "engine/exec/program.h"

namespace gradtune::exec {

class RankGrid {
 public:
  struct Dimension {
    const char* name = "ranks";
    int size = 1, index = 0, root = 0;
    bool summed = false;   // the gradient is the sum over it
    bool pending = false;  // has payloads of all its members, which the next decode adds up
    bool split = false;    // this rank has its own shard only
    bool rooted = false;   // only the root has anything

    // True if every rank of the dimension has the sum over it.
    bool is_replicated() const { return summed && !split && !rooted; }
  };
  static constexpr int kWhole = -1;
  using Part = std::vector<int>;  // the shard in each dimension, or kWhole

  // `number` is that of the bucket, and determines the roots.
  static RankGrid flat(const core::Seat& seat, int number);
  static RankGrid levels(const core::Seat& seat, int number);
  static RankGrid mesh(const core::Seat& seat, int number);

  // The dimension of the collectives of a level.
  static size_t dimension_of(core::Level level);

  size_t dimensions() const { return dimensions_.size(); }
  int shards() const;  // as many as ranks

  // Sets the bucket's number of elements, and the padded number that is cut into equal shards: a multiple of
  // shards() that is at least as large.
  void lay_out(int64_t numel, int64_t padded) {
    numel_ = numel;
    padded_ = padded;
  }

  Dimension& operator[](size_t d) { return dimensions_[d]; }
  const Dimension& operator[](size_t d) const { return dimensions_[d]; }

  int64_t padded() const { return padded_; }  // elements, including those behind the bucket's end
  Part own_part() const;
  Range range_of(const Part& part) const;         // without elements behind the bucket's end
  Range padded_range_of(const Part& part) const;  // shards of one dimension are equally long

  // True if every rank has the sum over all dimensions.
  bool is_replicated() const { return std::ranges::all_of(dimensions_, &Dimension::is_replicated); }

  // The shards of a dimension lie within those of the dimensions before it. True if a dimension after `d` is still
  // split.
  bool is_split_behind(size_t d) const;

  // True if this rank has data, judged by all dimensions but `except`.
  static constexpr size_t kNone = std::numeric_limits<size_t>::max();
  bool is_active(size_t except = kNone) const;

 private:
  explicit RankGrid(std::vector<Dimension> dimensions) : dimensions_(std::move(dimensions)) {}

  std::vector<Dimension> dimensions_;
  int64_t numel_ = 0, padded_ = 0;
};

}  // namespace gradtune::exec
