// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Rates from what a job's own steps took. Of the lines through two sizes' median times that one is taken which is least
// off from all medians, relatively and in sum, so that single slow steps do not matter; none falls with the size, and
// each says how far it was from what it was fitted to. Time of rank 0 is what is fitted: waiting for a slower rank in a
// collective counts as the collective's.
#pragma once

#include <span>
#include <vector>

#include "engine/core/strategy.h"
#include "policies/cost_table.h"

namespace gradtune::policies {

// One operation that ran: step `step` of a bucket's program, in us since any moment.
struct TimedStep {
  int32_t bucket = 0;
  int32_t step = 0;  // -1: the scale before a sum of gradients
  double begin_us = 0, end_us = 0;
};

// What one training step took under a strategy.
struct TimedStrategy {
  core::Strategy strategy = {};
  std::vector<TimedStep> steps = {};
};

// What a rate was fitted to.
struct RateQuality {
  int samples = 0;
  double error = 0;  // median of |measured - fitted| / fitted
};

struct FittedCost {
  CostTable table;
  std::vector<RateQuality> collectives;  // in the order of the table's rows
  std::vector<RateQuality> codecs;
};

// The strategies are of that table. Collectives that are under way together share a link evenly. A rate whose samples are of one size only is taken for
// proportional to the size.
FittedCost fit_cost(std::span<const TimedStrategy> timed, const core::GradientTable& table, const Ranks& ranks,
                    const std::vector<core::CompressorTraits>& known);

// y = fixed + unit * x, both at least 0.
struct Line {
  double fixed = 0, unit = 0;
};
struct Point {
  double x = 0, y = 0;
};
Line fit_line(std::vector<Point> points);

}  // namespace gradtune::policies
