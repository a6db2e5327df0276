// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A job whose step times are those of the timeline under a cost table that policies do not see. Policies receive
// noisy step times, and noisy times of operations.
#pragma once

#include <vector>

#include "engine/core/rng.h"
#include "policies/cost/cost_table.h"
#include "policies/policy.h"

namespace gradtune::policies::testing {

struct TimelineJob {
  Knowledge knowledge = {};  // without measurements
  CostTable truth = {};
  double rest_ms = 20;  // of a step, before the first gradient is ready

  double step_ms(const core::Strategy& strategy) const;
  double baseline_ms() const;  // of the faster baseline

  // Every operation is longer or shorter by about `noise`, and one in 30 takes three times as long.
  TimedRun timed(const core::Strategy& strategy, double noise, core::Rng& rng) const;

  // The knowledge of a policy after the first steps: a few of each baseline.
  Knowledge observed(double noise, core::Rng& rng) const;

  // The least step time over all partitions into whole tensors and all options of the decision tree for which there
  // are rates. Only for few tensors.
  double best_ms() const;
};

// Typical rates of such machines: a link of that many bytes a microsecond; compressors that cost about as much as
// passes over memory.
CostTable made_up_cost(int ranks, double link_bytes_per_us, const std::vector<core::CompressorSpec>& codecs);

}  // namespace gradtune::policies::testing
