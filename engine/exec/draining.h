// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Paying back residuals of compressors that are not used any more. What a lossy strategy still owes stays parked while
// another one is only on trial, and once that is committed it is added to the gradients over several steps, no more in
// one step than a stated part of the gradient: a residual may well be ten times as large as the gradient, and all of it
// at once would be a kick that no learning rate was chosen for. So it is where no residuals are kept any more, and
// where another compressor feeds back its own ones: it might release in one step what its predecessor released in a
// hundred.
//
// The rule, for a bucket on one rank: norm(added) <= kDrainShare * norm(gradient), and what is added has the direction
// of the residual. So the average over ranks is at most 1 + kDrainShare times as large as the mean of the ranks'
// gradients, and a residual of r gradients is gone after r / kDrainShare steps. Nothing is added where the gradient is
// zero or not finite.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/compress/queue.h"
#include "engine/core/gradient_table.h"

namespace gradtune::exec {

constexpr double kDrainShare = 0.5;

// Squares are added up in parts of so many elements, and these in order: the same for every number of threads.
constexpr int64_t kDrainParts = 256;
constexpr int64_t drain_part(int64_t n) {
  constexpr int64_t kLeast = 4096;
  const int64_t even = (n + kDrainParts - 1) / kDrainParts;
  return even > kLeast ? even : kLeast;
}

struct Drain {
  std::byte* gradient;  // n elements of that type
  core::DType dtype;    // not f64, of which no residual is kept
  int64_t n;
  const float* residual;
  float* residual_next;  // other memory: a step is undone by not using it
};

struct Drained {
  bool added = false;  // and residual_next is written; otherwise nothing was
  bool left = false;   // some residual is
  float share = 0;     // of the residual that was added
};

// Two passes over gradient and residual. What is added and what is left are together what there was, but for the
// rounding of the last sum. The same bits for every number of threads.
Drained drain(const Drain& job, compress::HostQueue& queue);

// The same of residuals that are kept once, fp32 gradients only: they are first multiplied by what was left of them
// after the step before, and what is left of them now is for the caller to keep (1 - share), or to forget.
struct ParkedDrain {
  float* gradient;
  int64_t n;
  float* residual;
  float left_before = 1;
};
Drained drain(const ParkedDrain& job, compress::HostQueue& queue);

}  // namespace gradtune::exec
