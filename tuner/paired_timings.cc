// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/paired_timings.h"

#include <algorithm>
#include <utility>

namespace gradtune::tuner {
namespace {

constexpr double kLongDelayUs = 5000;  // busy machines without a delay tell up to 4.7 (tests/golden/journals)

bool is_same_operation(const policies::TimedOp& a, const policies::TimedOp& b) {
  return a.bucket == b.bucket && a.step == b.step;
}

policies::TimedOp mean(const policies::TimedOp& a, const policies::TimedOp& b) {
  policies::TimedOp op = a;
  op.begin_us = (a.begin_us + b.begin_us) / 2;
  op.end_us = (a.end_us + b.end_us) / 2;
  op.bytes = a.bytes < 0 || b.bytes < 0 ? -1 : (a.bytes + b.bytes) / 2;
  return op;
}

}  // namespace

PairedTimings::PairedTimings(const policies::IdleLinks& links)
    : are_paired_(std::max(links.flat.wait_us, links.inter.wait_us) >= kLongDelayUs) {}

std::optional<std::vector<policies::TimedOp>> PairedTimings::add(int32_t slot, int64_t step,
                                                                 std::vector<policies::TimedOp> ops) {
  if (!are_paired_) return ops;
  const auto before = std::exchange(waiting_, std::nullopt);
  const bool is_next = before && before->slot == slot && before->step + 1 == step;
  if (!is_next || !std::ranges::equal(before->ops, ops, is_same_operation)) {
    waiting_ = Waiting{slot, step, std::move(ops)};
    return {};
  }
  std::ranges::transform(before->ops, ops, ops.begin(), mean);
  return ops;
}

}  // namespace gradtune::tuner
