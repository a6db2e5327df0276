// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The findings of operations in a step, apart from results: verdicts of compressors, the sample of the compression
// loss, and the drained residuals. Operations of the host write them where they are read. Operations of a device
// write them into the pool of their space, a report for each bucket. A copy of the report goes to the pool of the
// host before anybody is told that the work has ended.
#pragma once

#include <cstdint>

#include "engine/exec/balance.h"
#include "engine/exec/draining.h"
#include "engine/exec/loss_sample.h"
#include "engine/exec/program.h"

namespace gradtune::exec {

// The findings of a bucket; all zeros: nothing was looked at.
struct Findings {
  LossSample sample = {};
  compress::Verdict of_sample = {};  // of encoding and decoding the sample itself
  Balance balance = {};
  Drained drained = {}, drained_parked = {};
};

// A bucket's report consists of its findings and, behind them, a verdict for each of its operations.
constexpr int64_t report_bytes(const BucketProgram& bucket) {
  return static_cast<int64_t>(sizeof(Findings) + bucket.ops.size() * sizeof(compress::Verdict));
}
constexpr int64_t report_begin(size_t bucket, int64_t first_op) {
  return static_cast<int64_t>(bucket * sizeof(Findings)) + first_op * static_cast<int64_t>(sizeof(compress::Verdict));
}
constexpr int64_t report_bytes(const Program& program) { return report_begin(program.buckets.size(), program.ops); }

static_assert(sizeof(Findings) % alignof(compress::Verdict) == 0 && alignof(Findings) <= 16);

}  // namespace gradtune::exec
