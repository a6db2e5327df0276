// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/timed_ops.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace gradtune::tuner {

namespace {

// The operation's step in the numbering of policies; nothing for operations that they do not plan.
std::optional<int32_t> step_of(const exec::Op& op, const exec::BucketProgram& bucket) {
  if (op.step >= 0) return op.step;
  if (op.is<exec::Scale>()) return policies::kScaleStep;
  const auto* const copy = op.as<exec::Copy>();
  if (copy == nullptr) return {};
  return exec::space_of(copy->to, bucket) == core::Space::host ? policies::kToHostStep : policies::kToDeviceStep;
}

// The bytes that the operation moved; -1 if it moves none.
int64_t bytes_of(const exec::Op& op, const exec::OpTime& time) {
  if (const auto* const copy = op.as<exec::Copy>()) return copy->bytes;
  return op.is<exec::Collective>() ? time.bytes : -1;
}

}  // namespace

double tenths(double us) { return std::round(us * 10) / 10; }

std::vector<policies::TimedOp> timed_ops(const exec::Program& program, const std::vector<exec::OpTime>& times) {
  const int64_t start_ns = std::ranges::min_element(times, {}, &exec::OpTime::begin_ns)->begin_ns;
  std::vector<policies::TimedOp> ops;
  auto time = times.begin();
  for (size_t b = 0; b < program.buckets.size(); ++b) {
    for (const exec::Op& op : program.buckets[b].ops) {
      const exec::OpTime& at = *time++;
      const std::optional<int32_t> step = step_of(op, program.buckets[b]);
      if (!step) continue;
      ops.push_back({.bucket = static_cast<int32_t>(b),
                     .step = *step,
                     .begin_us = tenths(static_cast<double>(at.begin_ns - start_ns) * 1e-3),
                     .end_us = tenths(static_cast<double>(at.end_ns - start_ns) * 1e-3),
                     .bytes = bytes_of(op, at)});
    }
  }
  return ops;
}

}  // namespace gradtune::tuner
