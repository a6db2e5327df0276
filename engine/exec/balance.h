// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Checks the books of error feedback: a step's payload and the residual that it leaves add up to the input of the
// step, and the next step begins with that residual. Both follow from the contract of a compressor
// (engine/compress/compressor.h), so they hold for any gradients. A difference is a fault of a decoder, an encoder,
// a scale or the memory of residuals.
//
// A check decodes a rank's own payload over the gradient, which the bucket's average replaces later in any case. It
// compares sums in which half of the elements have a negative sign, so that numbers at wrong places do not cancel. A
// block of 256 elements out of some millions that is decoded wrongly stands out. Every bucket is checked once in
// kBalanceSteps steps.
//
// Cost: a decode and three passes over the bucket, once in kBalanceSteps steps, which is about a tenth of one decode
// per step.
#pragma once

#include <cstdint>

#include "engine/compress/queue.h"
#include "engine/exec/compute.h"
#include "engine/exec/program.h"

namespace gradtune::exec {

constexpr uint32_t kBalanceSteps = 32;

// The sum of numbers, each with the sign of its place, and the sum of their squares.
struct Total {
  double sum = 0, squares = 0;
};

// A job: the total of values, or of their sums with others, over n elements. The total is made of kTotalLanes
// partial sums, which are added up in order, so that host and device give the same bits.
struct TotalOf {
  const float* values = nullptr;
  const float* others = nullptr;  // null: none
  int64_t n = 0;
  Total* to = nullptr;
};
constexpr int kTotalLanes = 256;
void find_total(const TotalOf& job);

// The sign of a place: negative if the fractional part of its multiple of the golden ratio is at least a half. The
// signs have no period.
constexpr bool counts_negative(int64_t place) { return (static_cast<uint32_t>(place) * 0x9e3779b9U) >> 31 != 0; }

// Totals of a bucket in a step that is checked.
// - given: gradient plus residual.
// - sent: the decoded payload.
// - kept: the next residual.
// - left: the next residual at the end of the step, after sums that were encoded again have added to it.
// - begin: the residual that the step after it begins with.
struct Balance {
  Total given, sent, kept, left, begin;
};

// True if the bucket can be checked: the operation whose error is sampled (loss_sample.h) keeps all of its error,
// and nothing reads the gradient after it before a decode writes there.
bool can_be_balanced(const BucketProgram& bucket);

// True if the bucket is checked in this step.
constexpr bool is_balanced(int32_t bucket, uint32_t step) {
  return (step + static_cast<uint32_t>(bucket)) % kBalanceSteps == 0;
}

// The last operation that adds to the next residual; -1 if it works in another space than the residual's.
int32_t last_to_keep(const BucketProgram& bucket);

// Called after the operation whose error is sampled; it overwrites the gradient. The verdict says if the payload can
// be decoded.
void find_balance(const BucketProgram& bucket, const BucketMemory& memory, compress::Queue& queue, Balance& balance,
                  compress::Verdict& verdict);

// find_left is called after the last operation that adds to the residual, find_begin at the beginning of the next
// step.
void find_left(const BucketProgram& bucket, const BucketMemory& memory, compress::Queue& queue, Balance& balance);
void find_begin(const BucketProgram& bucket, const BucketMemory& memory, compress::Queue& queue, Balance& balance);

// The first is the difference between the input and the sum of payload and next residual, relative to the norm of
// the input. The second is the difference between the residual that a step begins with and the one that the step
// before it kept.
double imbalance(const Balance& balance, int divisor);  // by which the payload's share of the result was divided
double loss_of_residual(const Total& left, const Total& begin);

}  // namespace gradtune::exec
