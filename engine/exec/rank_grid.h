// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The ranks that a bucket's steps go over, in up to two dimensions: all of them, or those of a node and the nodes. For
// each dimension: what the steps so far did over it, and so which range of the bucket a rank has. Private to
// program.cc.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/exec/program.h"

namespace gradtune::exec {

class RankGrid {
 public:
  struct Dimension {
    int size = 1, index = 0, root = 0;
    bool summed = false;   // a gradient that is the sum over it
    bool pending = false;  // payloads of all its members, to be added up by the next decode
    bool split = false;    // this rank has its own shard only
    bool rooted = false;   // only the root has anything
  };
  static constexpr int kWhole = -1;
  using Part = std::array<int, 2>;  // the shard in each dimension, or kWhole

  // One dimension of all ranks, or those of a node and the nodes; `number`: of the bucket, which roots are drawn from.
  static RankGrid flat(const core::Seat& seat, int number);
  static RankGrid levels(const core::Seat& seat, int number);

  int shards() const { return dimensions_[0].size * dimensions_[1].size; }  // one a rank

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

  // Whether every rank of the dimension has the sum over it.
  bool is_replicated(size_t d) const {
    return dimensions_[d].summed && !dimensions_[d].split && !dimensions_[d].rooted;
  }
  bool is_active(size_t except = 2) const;  // whether this rank has something, as far as other dimensions go

 private:
  std::array<Dimension, 2> dimensions_ = {};
  int64_t numel_ = 0, padded_ = 0;
};

}  // namespace gradtune::exec
