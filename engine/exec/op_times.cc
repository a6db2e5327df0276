// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/op_times.h"

#include <string>

namespace gradtune::exec {

void read_times(const Program& program, core::Due due, std::span<const OpFences> fences, std::span<OpTime> times) {
  for (const BucketProgram& bucket : program.buckets) {
    if (bucket.due != due || bucket.space == core::Space::host) continue;
    for (size_t op = 0; op < bucket.ops.size(); ++op) {
      if (bucket.ops[op].space == core::Space::host) continue;
      const size_t at = static_cast<size_t>(bucket.first_op) + op;
      const auto begin = fences[at].begin.time_ns(), end = fences[at].end.time_ns();
      const int64_t bytes = times[at].bytes;
      times[at] = begin && end ? OpTime{.begin_ns = *begin, .end_ns = *end, .bytes = bytes} : OpTime{.bytes = bytes};
    }
  }
}

double comm_ms(const Program& program, core::Due due, std::span<const OpTime> times) {
  double ms = 0;
  for (const BucketProgram& bucket : program.buckets) {
    if (bucket.due != due) continue;
    for (size_t op = 0; op < bucket.ops.size(); ++op) {
      if (bucket.ops[op].kind != Op::Kind::collective) continue;
      const OpTime& time = times[static_cast<size_t>(bucket.first_op) + op];
      ms += static_cast<double>(time.end_ns - time.begin_ns) * 1e-6;
    }
  }
  return ms;
}

std::optional<core::Error> first_not_ended(const Program& program, std::span<const OpFences> fences, int64_t limit_ms) {
  for (size_t b = 0; b < program.buckets.size(); ++b) {
    const BucketProgram& bucket = program.buckets[b];
    for (size_t op = 0; op < bucket.ops.size(); ++op) {
      const core::Fence& end = fences[static_cast<size_t>(bucket.first_op) + op].end;
      const core::Status ended = end.wait(0);
      if (ended) continue;
      const bool is_late = !end.passed();
      return core::Error{ended.error().code,
                         "operation " + std::to_string(op) + " (" + std::string(name_of(bucket.ops[op].kind)) +
                             ") of bucket " + std::to_string(b) +
                             (is_late ? " has not ended on the device within " + std::to_string(limit_ms) + " ms"
                                      : " failed: " + ended.error().message)};
    }
  }
  return {};
}

}  // namespace gradtune::exec
