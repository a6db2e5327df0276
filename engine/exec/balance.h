// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Whether error feedback keeps its books: a step's payload and the residual that it leaves are together what the step
// was given, and the next step begins with that residual. Both follow from the contract of a compressor
// (engine/compress/compressor.h), so they hold for any gradients, and a difference is a fault of a decoder, an encoder,
// a scale or the memory of residuals.
//
// A check decodes a rank's own payload over the gradient, which the bucket's average replaces later in any case. It
// compares sums in which half of the elements count negative, so that numbers at other places do not cancel: a block of
// 256 elements in some millions that is decoded wrong stands out. Every bucket is checked once in kBalanceSteps steps.
//
// Cost: a decode, and three passes over the bucket, once in kBalanceSteps steps: about a tenth of one decode a step.
#pragma once

#include <cstdint>

#include "engine/compress/queue.h"
#include "engine/exec/compute.h"
#include "engine/exec/program.h"

namespace gradtune::exec {

constexpr uint32_t kBalanceSteps = 32;

// Of numbers: their sum, each with the sign of its place, and the sum of their squares.
struct Total {
  double sum = 0, squares = 0;
};

// The total of values, or of their sums with others, over n elements. Sums are made in kTotalLanes parts, which are
// added up in order: the same bits on the host and on a device.
struct TotalOf {
  const float* values = nullptr;
  const float* others = nullptr;  // null: none
  int64_t n = 0;
  Total* to = nullptr;
};
constexpr int kTotalLanes = 256;
void find_total(const TotalOf& job);

// A place's sign: the golden ratio's multiples modulo 1, below a half or not, which have no period.
constexpr bool counts_negative(int64_t place) { return (static_cast<uint32_t>(place) * 0x9e3779b9U) >> 31 != 0; }

// Totals of a bucket in a step that is checked: of gradient and residual, of the payload as it is decoded, of the next
// residual, and of that as the step leaves it, when sums that were encoded again have added to it. Of the step after
// it: of the residual that it begins with.
struct Balance {
  Total given, sent, kept, left, begin;
};

// Whether it can be checked: the operation whose error is looked at (loss_sample.h) keeps all of its error, and nothing
// reads the gradient behind it before a decode writes there.
bool can_be_balanced(const BucketProgram& bucket);

// Whether a bucket is checked in a step.
constexpr bool is_balanced(int32_t bucket, uint32_t step) {
  return (step + static_cast<uint32_t>(bucket)) % kBalanceSteps == 0;
}

// The last operation that adds to the next residual; -1 where that happens elsewhere than the residual is.
int32_t last_to_keep(const BucketProgram& bucket);

// After the operation whose error is looked at; the gradient is gone then. Whether the payload can be decoded goes to
// the verdict.
void find_balance(const BucketProgram& bucket, const BucketMemory& memory, compress::Queue& queue, Balance& balance,
                  compress::Verdict& verdict);

// After the last operation that keeps something, and as the next step begins.
void find_left(const BucketProgram& bucket, const BucketMemory& memory, compress::Queue& queue, Balance& balance);
void find_begin(const BucketProgram& bucket, const BucketMemory& memory, compress::Queue& queue, Balance& balance);

// How far payload and next residual are from what was given, in relation to its norm; and how far the residual that a
// step begins with is from what the step before it kept.
double imbalance(const Balance& balance, int size);  // ranks, of whose average the payload is a share
double loss_of_residual(const Total& left, const Total& begin);

}  // namespace gradtune::exec
