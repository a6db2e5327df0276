// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Paying back residuals without a compressor. What a lossy strategy still owes stays parked while one without loss is
// only on trial, and once that is committed it is added to the gradients over several steps, no more in one step than
// a stated part of the gradient: a residual may well be ten times as large as the gradient, and all of it at once would
// be a kick that no learning rate was chosen for.
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

struct Drain {
  std::byte* gradient;  // n elements of that type
  core::DType dtype;
  int64_t n;
  const float* residual;
  float* residual_next;  // other memory: a step is undone by not using it
};

struct Drained {
  bool added = false;  // and residual_next is written; otherwise nothing was
  bool left = false;   // some residual is
};

// Two passes over gradient and residual. What is added and what is left are together what there was, but for the
// rounding of the last sum. The same bits for every number of threads.
Drained drain(const Drain& job, compress::Queue& queue);

}  // namespace gradtune::exec
