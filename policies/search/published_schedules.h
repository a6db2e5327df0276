// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Published schedules of one channel on which a message of x elements takes A + B x. Each gives buckets in the order in
// which they leave.
//
//   wait_free      Poseidon's wait-free back-propagation (ATC 2017): each tensor when it is ready
//   merged         MG-WFBP (INFOCOM 2019, algorithm 1): a tensor is merged into the next one where that saves latency
//   partitioned    ByteScheduler (SOSP 2019): blocks of at most so many elements, first what forward reads first
//   gap_blocks     US-Byte (TPDS 2024, algorithms 1 and 2): while backward runs, blocks that are just long enough to
//                  fill the time until the next gradient, by priority; then what is left of each tensor, in the order
//                  in which forward reads it
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

// The rank of each tensor of the table among all: 0 for the one that forward reads first. Of tensors that are read at
// once, the one that is ready last. Less is more urgent.
std::vector<int> by_read(const core::GradientTable& table);

// US-Byte's search (algorithm 3) from the order of reads: one tensor after the other moves ahead of those that would
// interrupt its transfer. Its objective is the caller's, where the published one is an estimate that replay does not
// confirm. Returns the best found.
Sent search_gap_blocks(const ScheduledJob& job, const std::function<double(const Sent&)>& end_us);

// The strategy whose buckets leave in that order. Buckets must tile the table.
core::Strategy strategy_in_order(Sent sent);

}  // namespace gradtune::policies
