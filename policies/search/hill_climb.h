// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Improves a strategy by small changes, as long as the timeline predicts an earlier end. A bucket gets another
// option, two neighbours are merged, one is split, more collectives are in flight, and finally one collective is
// issued before another. Planners search with a simple model of lanes: messages leave in the order of readiness,
// decoding never delays backward, and a link is busy while its messages travel. The timeline has the executor's own
// rules, but no structure that a search could exploit.
#pragma once

#include <span>
#include <vector>

#include "engine/core/strategy.h"
#include "policies/cost/cost_table.h"

namespace gradtune::policies {

struct HillClimbJob {
  const core::GradientTable& table;
  const CostTable& cost;
  core::TraitsTable traits;               // of all known compressors
  std::span<const core::Option> options;  // that buckets may get
  int most_in_flight = 1;                 // collectives, while messages only travel (Machine::collectives_at_once)
  int most_runs = 400;                    // of the timeline, for each start, and for the order
};

// Returns a strategy that ends no later. A strategy with a step for which the table lacks a rate is returned
// unchanged.
core::Strategy hill_climb(core::Strategy strategy, const HillClimbJob& job);

// Only the last change: the same buckets, with some collectives issued earlier.
core::Strategy reorder(core::Strategy strategy, const HillClimbJob& job);

}  // namespace gradtune::policies
