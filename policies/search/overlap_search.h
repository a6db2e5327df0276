// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The joint search over blocks, merges, options and order for steps that go on into the next forward pass. Late reads
// come first in backward, so what should leave first is ready last; latency asks for few messages, overlap for many.
//
// A plan is where each dtype's gradients are cut, at any element, and for each message an option and a moment before
// which it does not leave. The order follows from that: whenever the channel is free, of the messages that may leave
// the one that forward reads first. Of two messages that are both ready no other order ends earlier on one channel, so
// that only leaving the channel idle has to be searched.
//
// The first plans fill the time until the next gradients with blocks, after US-Byte (TPDS 2024, algorithm 1), one plan
// for each of several least lengths. Small changes then improve them, some of them random. The objective is an exact
// replay. The same input gives the same plan.
#pragma once

#include <cstdint>
#include <span>

#include "policies/cost/cost_model.h"
#include "policies/search/published_schedules.h"

namespace gradtune::policies {

struct OverlapOptions {
  int64_t most_work = 400'000;  // messages that are replayed, about
};

// The best found, in the order in which messages leave, never worse than the starts. A message that is there before
// forward could need it is due when backward returns, which costs nothing.
Sent search_overlap(const CostModel& model, const core::GradientTable& table, std::span<const core::Strategy> starts,
                    const OverlapOptions& options = {});

}  // namespace gradtune::policies
