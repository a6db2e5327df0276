// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Rates of collectives, from how long those of a job's own steps took. The assumptions:
//   - Collectives that are under way together share a link in proportion to what each takes alone. One that runs mostly
//     beside much larger ones says nothing of its own cost, since it waits in their queue, and is left out.
//   - A message only travels, and leaves the link to others, equally long for all kinds on a link, and no longer than
//     the shortest message took. The prior's value stays unless another one explains periods of several messages
//     clearly better.
//   - A byte costs no less than it ever did over a long period, or than the prior says. A kind whose messages are too
//     small to show what it costs takes the prior's.
//   - The fixed part of a message is the prior's until enough short ones were seen.
//   - Stalls, such as a thread that is woken late, are spread over all messages.
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
