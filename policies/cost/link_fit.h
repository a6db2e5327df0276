// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Fits the rates of collectives to the times of a job's own steps, under these assumptions:
// - Collectives in flight together share a link in proportion to their times alone. A collective that runs mostly
//   beside much larger ones waits in their queue and says nothing about its own cost, so it is left out.
// - A message only travels, and leaves the link to others, for the same time for all kinds on a link, and no longer
//   than the shortest message took. The prior's value stays unless another one explains periods of several messages
//   clearly better.
// - A byte costs no less than its least observed cost over a long period, and no less than the prior says. A kind
//   whose messages are too small to show the cost of a byte takes the prior's.
// - The fixed part of a message is the prior's until enough short messages were observed.
// - Stalls, such as a thread that is woken late, are spread over all messages.
#pragma once

#include <vector>

#include "policies/cost/cost_table.h"
#include "policies/cost/line_fit.h"

namespace gradtune::policies {

// A collective of one step; times are in us from a common start.
struct TimedMessage {
  core::Step::Kind kind = core::Step::Kind::all_reduce;
  core::Level level = core::Level::flat;
  double link_bytes = 0;  // summed over all ranks that share the link
  double begin_us = 0, end_us = 0;
};

struct FittedCollective {
  CollectiveRate rate;
  RateQuality quality;
};

// One result for each kind and level that was observed or is in the prior. `steps`: the collectives of each step.
std::vector<FittedCollective> fit_links(const std::vector<std::vector<TimedMessage>>& steps, const core::Ranks& ranks,
                                        const CostTable& prior);

}  // namespace gradtune::policies
