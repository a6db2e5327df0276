// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Published schedules for one channel on which a message of x elements takes A + B x. Each gives buckets in the
// order in which they leave:
// - wait_free: Poseidon's wait-free back-propagation (ATC 2017). Each tensor leaves when it is ready.
// - merged: MG-WFBP (INFOCOM 2019, algorithm 1). A tensor is merged into the next one if that saves latency.
// - partitioned: ByteScheduler (SOSP 2019). Blocks have a maximum number of elements; the first to leave is the one
//   that forward reads first.
// - gap_blocks: US-Byte (TPDS 2024, algorithms 1 and 2). While backward runs, blocks leave by priority that are just
//   long enough to fill the time until the next gradient. Then the rest of each tensor leaves, in the order in which
//   forward reads it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/core/gradient_table.h"
#include "engine/core/strategy.h"
#include "policies/cost/linear_cost.h"

namespace gradtune::policies {

struct ScheduledJob {
  const core::GradientTable& table;
  LinearCost cost;      // of the channel
  core::Option option;  // of every bucket
};
using Sent = std::vector<core::Bucket>;

Sent wait_free(const ScheduledJob& job);                               // due when backward returns
Sent merged(const ScheduledJob& job);                                  // due when backward returns
Sent partitioned(const ScheduledJob& job, int64_t most_elements);      // due when forward reads them
Sent gap_blocks(const ScheduledJob& job, std::span<const int> ranks);  // due when forward reads them; see by_read()

// The rank of each tensor of the table among all: 0 for the one that forward reads first. Among tensors that are
// read at the same time, the one that is ready last comes first. A smaller rank is more urgent.
std::vector<int> by_read(const core::GradientTable& table);

// US-Byte's search (algorithm 3), starting from the order of reads: one tensor after another moves ahead of those
// that would interrupt its transfer. The caller gives the objective; the published one is an estimate that replay
// does not confirm. Returns the best schedule found.
Sent search_gap_blocks(const ScheduledJob& job, const std::function<double(const Sent&)>& end_us);

// The strategy whose buckets leave in that order. Buckets must tile the table.
core::Strategy strategy_in_order(Sent sent);

}  // namespace gradtune::policies
