// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The joint search over blocks, merges, options and order for steps that go on into the next forward pass. Backward
// begins with the tensors that forward reads last, so the most urgent gradients are ready last. Latency favours few
// messages, overlap favours many.
//
// A plan cuts each dtype's gradients at arbitrary elements. It gives each message an option and a moment before
// which it does not leave. The order follows: whenever the channel is free, the message leaves that forward reads
// first among those that may leave. If two messages are both ready, no other order ends earlier on one channel, so
// the search only has to decide when to leave the channel idle.
//
// The first plans fill the time until the next gradients with blocks, after US-Byte (TPDS 2024, algorithm 1), one
// plan for each of several minimum lengths. Small changes then improve them, some of them random. The objective is
// an exact replay. The same input gives the same plan.
#pragma once

#include <cstdint>
#include <span>

#include "policies/cost/cost_model.h"
#include "policies/search/published_schedules.h"

namespace gradtune::policies {

struct OverlapOptions {
  int64_t most_work = 400'000;  // approximate number of replayed messages
};

// The best plan found, in the order in which messages leave; never worse than the starts. A message that arrives
// before forward could need it is due when backward returns, which costs nothing.
Sent search_overlap(const CostModel& model, const core::GradientTable& table, std::span<const core::Strategy> starts,
                    const OverlapOptions& options = {});

}  // namespace gradtune::policies
