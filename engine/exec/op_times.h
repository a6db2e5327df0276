// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The times at which the operations of a step began and ended. Operations of a device are queued ahead, so their
// times come from fences once these have passed.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "engine/core/fence.h"
#include "engine/core/result.h"
#include "engine/exec/program.h"

namespace gradtune::exec {

// A collective is under way from the moment it is started. Times are in nanoseconds of the executor's clock. A scale
// that was done as pieces arrived takes the total time of the pieces, and ends with the last of them.
struct OpTime {
  int64_t begin_ns = 0, end_ns = 0;
  int64_t bytes = 0;  // of a collective: the bytes that the busiest link actually carried (comm::link_bytes)
};

// The fences of an operation on a device; empty for those of the host.
struct OpFences {
  core::Fence begin, end;
};

// `times` and `fences` have an entry for each operation of the program, bucket after bucket.

// Fills in the times of operations on a device, in buckets with that due time. The time is zero if a fence has none.
void read_times(const Program& program, core::Due due, std::span<const OpFences> fences, std::span<OpTime> times);

// The total time of all collectives in buckets with that due time.
double comm_ms(const Program& program, core::Due due, std::span<const OpTime> times);

// The first operation that has failed, or that has not ended by `limit_ms`, which is over.
std::optional<core::Error> first_not_ended(const Program& program, std::span<const OpFences> fences, int64_t limit_ms);

}  // namespace gradtune::exec
