// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The ranks that a bucket's steps go over, in one or more dimensions: all of them; those of a node and the nodes; or
// the dimensions of the mesh of all ranks. For each dimension: what the steps so far did over it, and so which range of
// the bucket a rank has. Private to program.cc.
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
    bool summed = false;   // a gradient that is the sum over it
    bool pending = false;  // payloads of all its members, to be added up by the next decode
    bool split = false;    // this rank has its own shard only
    bool rooted = false;   // only the root has anything

    // Whether every rank of the dimension has the sum over it.
    bool is_replicated() const { return summed && !split && !rooted; }
  };
  static constexpr int kWhole = -1;
  using Part = std::vector<int>;  // the shard in each dimension, or kWhole

  // `number`: of the bucket, which roots are drawn from.
  static RankGrid flat(const core::Seat& seat, int number);
  static RankGrid levels(const core::Seat& seat, int number);
  static RankGrid mesh(const core::Seat& seat, int number);

  // That collectives of a level are over.
  static size_t dimension_of(core::Level level);

  size_t dimensions() const { return dimensions_.size(); }
  int shards() const;  // one a rank

  // The bucket's elements, and as many as are cut into equal shards: a multiple of shards(), at least as many.
  void lay_out(int64_t numel, int64_t padded) {
    numel_ = numel;
    padded_ = padded;
  }

  Dimension& operator[](size_t d) { return dimensions_[d]; }
  const Dimension& operator[](size_t d) const { return dimensions_[d]; }

  int64_t padded() const { return padded_; }  // elements, with those behind the bucket's end
  Part own_part() const;
  Range range_of(const Part& part) const;         // without what lies behind the bucket's end
  Range padded_range_of(const Part& part) const;  // shards of one dimension are equally long

  // Whether every rank has the sum over all.
  bool is_replicated() const { return std::ranges::all_of(dimensions_, &Dimension::is_replicated); }

  // Shards lie within those of the dimensions before: whether those of a dimension behind that one are still apart.
  bool is_split_behind(size_t d) const;

  // Whether this rank has something, as far as other dimensions go.
  static constexpr size_t kNone = std::numeric_limits<size_t>::max();
  bool is_active(size_t except = kNone) const;

 private:
  explicit RankGrid(std::vector<Dimension> dimensions) : dimensions_(std::move(dimensions)) {}

  std::vector<Dimension> dimensions_;
  int64_t numel_ = 0, padded_ = 0;
};

}  // namespace gradtune::exec
