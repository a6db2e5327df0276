// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The trace of a step: the times at which operations began and ended, and the fences between them. Operations of a
// device are queued ahead, so their times come from fences once these have passed.
//
// Entries belong to the thread that works on their bucket. The notes by which threads hand a bucket on (mail.h) also
// hand on its entries.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

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

class Trace {
 public:
  // Called between steps, for the program in force, which outlives its steps.
  void follow(const Program& program);

  // For a bucket on a device: passes when its gradients are ready.
  core::Fence& ready(int32_t bucket) { return ready_[static_cast<size_t>(bucket)]; }
  // The end of the bucket's last operation so far.
  core::Fence& end(int32_t bucket) { return ends_[static_cast<size_t>(bucket)]; }
  OpTime& time(int32_t bucket, int32_t op) { return times_[at(bucket, op)]; }
  OpFences& fences(int32_t bucket, int32_t op) { return fences_[at(bucket, op)]; }

  // Fills in the times of operations on a device, in buckets with that due time. The time is zero if a fence has none.
  void read_fences(core::Due due);
  // The times of all operations, bucket after bucket.
  const std::vector<OpTime>& times() const { return times_; }
  // The total of all collectives in buckets with that due time.
  struct Traffic {
    double ms = 0;
    int64_t bytes = 0;
  };
  Traffic traffic(core::Due due) const;
  // The first operation that has failed, or that has not ended by `limit_ms`, which is over.
  std::optional<core::Error> first_not_ended(int64_t limit_ms) const;

 private:
  size_t at(int32_t bucket, int32_t op) const {
    return static_cast<size_t>(program_->buckets[static_cast<size_t>(bucket)].first_op + op);
  }

  const Program* program_ = nullptr;
  std::vector<core::Fence> ready_, ends_;  // per bucket
  std::vector<OpTime> times_;              // per operation
  std::vector<OpFences> fences_;
};

}  // namespace gradtune::exec
