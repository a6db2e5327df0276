// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Rates from what a job's own steps took. Of the lines through what is usual at two sizes that one is taken which is
// least off from all sizes, relatively and in sum, so that single slow steps do not matter; none falls with the size,
// and each says how far it was from what it was fitted to. Time of rank 0 is what is fitted: where it often waits for a
// slower rank in a collective, that counts as the collective's.
//
// What was never seen has a prior, which is cheap on purpose: a planner that takes it at its word tries what it does
// not know, and then it is known.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "policies/cost_table.h"
#include "policies/policy.h"

namespace gradtune::policies {

// What a rate was fitted to.
struct RateQuality {
  int samples = 0;   // 0: it is the prior's
  double error = 0;  // median of |measured - fitted| / fitted

  // Of the rate, relatively, as if samples were independent and normal. Nothing is known of a prior's.
  double standard_error() const;
};

struct FittedCost {
  CostTable table;
  std::vector<RateQuality> collectives;  // in the order of the table's rows
  std::vector<RateQuality> codecs;       // of the half, encode or decode, that is known less well
};

// The strategies are of that table. Collectives that are under way together share a link in proportion to what they
// take alone; those that are so mostly beside much larger ones do not count, as they wait in the queue of these. A byte
// costs about what the prior says where messages of a kind are too small to tell: a link is what it is, whatever
// travels; and so does a message, until enough short ones were seen. Stalls, which are not usual, are spread over all
// messages. A rate whose samples are of one size only is taken for proportional to the size, beyond the prior's fixed
// part where there is one. Of what was not seen the prior's rates are taken; without any a compressor is left out
// unless both halves of it were seen.
FittedCost fit_cost(std::span<const TimedStrategy> timed, const core::GradientTable& table, const Ranks& ranks,
                    const std::vector<core::CompressorTraits>& known, const CostTable& prior = {});

// Rates for all collectives that move whole gradients or payloads over all ranks, a byte on the link as fast as that of
// an all_reduce; where there are levels, for those between nodes, as fast, and for those of gradients in a node,
// faster; and for the compressors at both places, as fast as the host's memory: encoding reads each element once,
// decoding writes it once. Nothing where no all_reduce was seen.
std::optional<CostTable> prior_cost(const CostTable& seen, const std::vector<core::CompressorSpec>& codecs);

// The table with each rate, of those that were fitted, scaled by 1 + `errors` standard errors, at least by a half.
CostTable shifted(const FittedCost& fitted, double errors);

// y = fixed + unit * x, both at least 0.
struct Line {
  double fixed = 0, unit = 0;
};
struct Point {
  double x = 0, y = 0;
};
// An expected fixed part counts as one point more, which is off by the logarithm of how many times it is, up to a few:
// it decides where the points are of one size or too large to tell, and otherwise they do. What is expected far beyond
// the points counts as a few points there. Of points of one x their quantile counts.
struct LineFit {
  double expected_fixed = 0;
  std::optional<Point> expected_far = {};
  double quantile = 0.5;
};
Line fit_line(std::vector<Point> points, const LineFit& how = {});

}  // namespace gradtune::policies
