// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// When the operations of a step began and ended. Those of a device are asked for ahead, so that fences tell it once
// they have passed.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "engine/core/fence.h"
#include "engine/core/result.h"
#include "engine/exec/program.h"

namespace gradtune::exec {

// A collective is under way from the moment it is started. Nanoseconds of the executor's clock. A scale that was done
// as pieces arrived takes as long as that took, up to the last of them.
struct OpTime {
  int64_t begin_ns = 0, end_ns = 0;
  int64_t bytes = 0;  // of a collective: what the busiest link really carried of it (comm::link_bytes)
};

// Of an operation on a device; empty for those of the host.
struct OpFences {
  core::Fence begin, end;
};

// `times` and `fences` have an entry for each operation of the program, bucket after bucket.

// Fills in the times of operations on a device, in buckets that are due then. Zero where a fence has none.
void read_times(const Program& program, core::Due due, std::span<const OpFences> fences, std::span<OpTime> times);

// Of all collectives in buckets that are due then, added up.
double comm_ms(const Program& program, core::Due due, std::span<const OpTime> times);

// The first operation that has failed, or has not ended within that limit, which is over.
std::optional<core::Error> first_not_ended(const Program& program, std::span<const OpFences> fences, int64_t limit_ms);

}  // namespace gradtune::exec
