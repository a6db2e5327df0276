// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Rates of collectives from what those of a job's own steps took. Collectives that are under way together share a link
// in proportion to what they take alone; those that are so mostly beside much larger ones do not count, as they wait in
// the queue of these. For how long a message travels, which leaves the link free for others, is the same for all kinds
// on a link, no longer than the shortest one took, and what explains periods of several messages best, unless what the
// prior says, which may be longer, does so nearly as well. A byte costs about what the prior says where messages of a
// kind are too small to tell: a link is what it is, whatever travels, and nothing is faster than it ever was over a long
// period; and so does a message, until enough short ones were seen. Stalls, which are not usual, are spread over all
// messages.
#pragma once

#include <vector>

#include "policies/cost/cost_table.h"
#include "policies/cost/line_fit.h"

namespace gradtune::policies {

// A collective of one step; in us since any moment of it.
struct TimedMessage {
  core::Step::Kind kind = core::Step::Kind::all_reduce;
  core::Level level = core::Level::flat;
  double link_bytes = 0;  // of all that share the link
  double begin_us = 0, end_us = 0;
};

struct FittedCollective {
  CollectiveRate rate;
  RateQuality quality;
};

// One of each kind that was seen or is the prior's, by kind and level. `steps`: the collectives of each.
std::vector<FittedCollective> fit_links(const std::vector<std::vector<TimedMessage>>& steps, const core::Ranks& ranks,
                                        const CostTable& prior);

}  // namespace gradtune::policies
