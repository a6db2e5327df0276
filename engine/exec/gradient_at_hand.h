// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The memory of a bucket's gradient while its program is compiled: the numbers of the gradient's type and the fp32
// staging, in each space where steps need them. The current gradient lies in one space at a time. Private to
// program.cc.
#pragma once

#include <cstdint>

#include "engine/exec/bucket_layout.h"
#include "engine/exec/program.h"
#include "engine/exec/rank_grid.h"

namespace gradtune::exec {

// Adds a copy between spaces to the program.
void add_copy(BucketProgram& program, const Address& from, const Address& to, int64_t bytes);

class GradientAtHand {
 public:
  // Both outlive the compilation. The dtype, space and number of elements of the program are set.
  GradientAtHand(BucketProgram& program, BucketLayout& layout)
      : program_(program), layout_(layout), space_(program.space) {}

  core::Space space() const { return space_; }
  // An operation writes the current gradient there.
  void appears_in(core::Space space) { space_ = space; }

  // The memory of these spaces; it is allocated on first use.
  Address dense_in(core::Space space);
  Address numbers_in(core::Space space);

  // Copies the numbers of the gradient's type.
  void copy_numbers(core::Space from, core::Space to);
  // Copies this rank's part of the current gradient to that space.
  void bring(core::Space space, const RankGrid& grid);
  // Sets up a collective in place on a range of the current gradient, which it brings to that space.
  void work_on(Collective& what, core::Space space, const Range& range, const RankGrid& grid);

 private:
  int64_t numbers_bytes() const { return program_.numel * core::bytes_per_element(program_.dtype); }

  BucketProgram& program_;
  BucketLayout& layout_;
  core::Space space_;
  core::PerSpace<bool> has_dense_{}, has_numbers_{};
};

}  // namespace gradtune::exec
