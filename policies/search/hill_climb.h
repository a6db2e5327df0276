// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Improves a strategy by small changes, as long as its step ends earlier by the timeline: a bucket gets another option,
// two neighbours become one, one becomes two, more collectives are in flight, and in the end one collective is issued
// before another. Planners search under a simple model of lanes, in which messages leave in the order of readiness,
// decoding never delays backward, and a link is busy while its messages travel; the timeline has the executor's own
// rules, but no structure that a search could use.
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
  int most_runs = 400;                    // of the timeline, from each start, and for the order
};

// A strategy that ends no later. A strategy for whose steps the table lacks a rate stays as it is.
core::Strategy hill_climb(core::Strategy strategy, const HillClimbJob& job);

// The last part of it: the same buckets, of which some collectives are issued earlier.
core::Strategy reorder(core::Strategy strategy, const HillClimbJob& job);

}  // namespace gradtune::policies
