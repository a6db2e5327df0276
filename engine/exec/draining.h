// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Draining of residuals whose compressors are no longer used. The residual of a lossy strategy stays parked while
// another strategy is only on trial. Once the other strategy is committed, the residual is added to the gradients
// over several steps, in each step at most a fixed part of the gradient. The reason: a residual may be ten times as
// large as the gradient, and adding all of it at once would be a kick that no learning rate was chosen for. The same
// rule holds in buckets that no longer keep residuals, and in buckets whose new compressor feeds back its own. The
// new one might release in one step as much as its predecessor released in a hundred.
//
// The rule, for a bucket on one rank: norm(added) <= kDrainShare * norm(gradient), and the added vector has the
// direction of the residual. So the average over ranks is at most 1 + kDrainShare times as large as the mean of the
// ranks' gradients. A residual of r gradients is gone after r / kDrainShare steps. Nothing is added if the gradient
// is zero or not finite.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/compress/queue.h"
#include "engine/core/gradient_table.h"

namespace gradtune::exec {

constexpr double kDrainShare = 0.5;

// Squares are added up in parts of that many elements, and the parts in order, so that the result does not depend on
// the number of threads.
constexpr int64_t kDrainParts = 256;
constexpr int64_t drain_part(int64_t n) {
  constexpr int64_t kLeast = 4096;
  const int64_t even = (n + kDrainParts - 1) / kDrainParts;
  return even > kLeast ? even : kLeast;
}

struct Drain {
  std::byte* gradient;  // n elements of `dtype`
  core::DType dtype;    // not f64, for which no residual is kept
  int64_t n;
  const float* residual;
  float* residual_next;  // separate memory: a step is undone by not using it
};

struct Drained {
  bool added = false;  // residual_next is written, otherwise nothing was
  bool left = false;   // some residual is left
  float share = 0;     // the part of the residual that was added
};

// Makes two passes over gradient and residual. The added and the remaining part together equal the former residual,
// apart from the rounding of the last sum. The result has the same bits for every number of threads.
Drained drain(const Drain& job, compress::HostQueue& queue);

// The same for residuals that are kept once, with fp32 gradients only. They are first multiplied by `left_before`,
// the part that the step before left. The caller then stores the part that is left now (1 - share), or discards it.
struct ParkedDrain {
  float* gradient;
  int64_t n;
  float* residual;
  float left_before = 1;
};
Drained drain(const ParkedDrain& job, compress::HostQueue& queue);

}  // namespace gradtune::exec
