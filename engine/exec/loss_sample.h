// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The loss of a bucket's compression in a step, estimated from a sample so that it can be measured in every step.
// - error: e = norm(p - decode(encode(p))) / norm(p), with p = gradient + residual, for the first encode on this
//   rank with a lossy compressor (a share of the ranks' sum in some programs).
// - residual: norm(residual) / norm(gradient), before the step.
//
// The sample is kSample elements in many short runs, spread over the range and at other places in each step. It is the
// whole of a range that is no longer than that. Runs are short because gradients are concentrated: of a weight, a few
// rows and columns may have most of the norm, and a low-rank compressor approximates these well and the others badly.
// A few long runs miss such rows in most steps, and find errors above 1 where the true error is 0.8.
//
// A compressor with error feedback has just written p - decode(encode(p)) to the next residual, which is read. For one
// without, a sample is encoded and decoded once more on its own. That sample has fewer runs, as long as a block of the
// codecs.
//
// Cost: for each bucket and step, five times the sample is read (40 KiB), which takes 22 us on one core (median) if
// none of it is in a cache. That is 0.1-0.2 % of the shortest steps that are worth compressing, and does not grow
// with the bucket.
#pragma once

#include <cstdint>

#include "engine/compress/queue.h"
#include "engine/core/rng.h"
#include "engine/exec/compute.h"
#include "engine/exec/program.h"

namespace gradtune::exec {

constexpr int64_t kRuns = 64, kRun = 32, kSample = kRuns * kRun;

// Sums of squares over the sample; both zero: not looked at.
struct LossSample {
  double given = 0, missed = 0;       // of p and of the part that was not sent
  double gradient = 0, residual = 0;  // before the step
};

// The operation of the bucket whose error is sampled: the first lossy encode whose error this rank can see, or -1.
// For a compressor with several rounds it is the one of the last round.
int32_t sampled_op(const BucketProgram& bucket);

// Bytes of the pool that sampling this operation needs.
int64_t sample_bytes(const Encode& encode);

// The sample of a range in a step: `count` runs of `length` elements, one in each stretch of `stride` elements. Each
// run has a place of its own in its stretch: at equal distances, all runs could lie in the same columns of a weight.
struct Runs {
  int64_t begin, stride, count, length;
  uint64_t step;

  constexpr int64_t first(int64_t run) const {
    const auto room = static_cast<uint64_t>(stride - length + 1);
    return begin + run * stride +
           static_cast<int64_t>(core::Rng(step << 32 | static_cast<uint64_t>(run)).next() % room);
  }
};
Runs runs_of(const Range& range, uint32_t step, int64_t length = kRun);

// A job: the squares of values, or of their sums or differences with others, over the runs of a range. `to` grows by
// `unit` times their sum.
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

// Called before the bucket's first scale or encode. The sums are added to the sample, which is in the queue's space.
void sample_residual(const BucketProgram& bucket, const BucketMemory& memory, compress::Queue& queue,
                     LossSample& sample);

// Called after the sampled operation. The findings of encoding the sample itself go to the verdict; if it is not
// clean, the sums are meaningless.
void sample_error(const BucketProgram& bucket, const BucketMemory& memory, compress::Queue& queue, LossSample& sample,
                  compress::Verdict& verdict);

}  // namespace gradtune::exec
