// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What a bucket's compression loses in a step, estimated from a sample so that it can be looked at in every step:
//   error     e = norm(p - decode(encode(p))) / norm(p), p = gradient + residual, of what this rank encodes first with
//             a compressor that loses (a share of the ranks' sum in some programs)
//   residual  norm(residual) / norm(gradient), before the step
// The sample is kRuns runs of kRun elements, evenly over the range and somewhere else in each step; all of a range that
// is no longer than that. A compressor with error feedback has just written p - decode(encode(p)) to the next residual,
// which is read; one without encodes and decodes the sample once more for itself.
//
// Cost: five times the sample is read of a bucket in a step (40 KiB), 16 us on one core (median) when nothing of it is
// in a cache. That is 0.1-0.2 % of the shortest steps that are worth compressing, and does not grow with the bucket.
#pragma once

#include <cstdint>

#include "engine/compress/queue.h"
#include "engine/exec/compute.h"
#include "engine/exec/program.h"

namespace gradtune::exec {

constexpr int64_t kRuns = 8, kRun = 256, kSample = kRuns * kRun;

// Sums of squares over the sample; both zero: not looked at.
struct LossSample {
  double given = 0, missed = 0;       // of p and of what was not sent
  double gradient = 0, residual = 0;  // before the step
};

// The operation of the bucket whose error is looked at: the first to encode with loss whose error this rank can see, or
// -1. That of a compressor with several rounds is the last one's.
int32_t sampled_op(const BucketProgram& bucket);

// Bytes of the pool that sampling this operation needs.
int64_t sample_bytes(const Op& op);

// The sample of a range in a step: `count` runs of `length` elements.
struct Runs {
  int64_t first, stride, count, length;
};
Runs runs_of(const Range& range, uint32_t step);

// Squares of values, or of their sums or differences with others, over the runs of a range; `to` grows by `unit` times
// their sum.
struct RunSquares {
  const float* values = nullptr;
  const float* others = nullptr;  // null: none
  float sign = 1;                 // of the others
  Range range = {};
  uint32_t step = 0;
  double unit = 1;
  double* to = nullptr;
};
void add_squares(const RunSquares& job);

// Before the bucket's first scale or encode. Sums grow in the sample, which is where the queue works.
void sample_residual(const BucketProgram& bucket, const BucketMemory& memory, compress::Queue& queue,
                     LossSample& sample);

// After the sampled operation. What encoding the sample itself found goes to the verdict; where that is not clean, the
// sums mean nothing.
void sample_error(const BucketProgram& bucket, const Op& op, const BucketMemory& memory, compress::Queue& queue,
                  LossSample& sample, compress::Verdict& verdict);

}  // namespace gradtune::exec
