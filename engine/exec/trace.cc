// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/trace.h"

#include <string>

namespace gradtune::exec {

void Trace::follow(const Program& program) {
  program_ = &program;
  ready_.assign(program.buckets.size(), {});
  ends_.assign(program.buckets.size(), {});
  times_.assign(static_cast<size_t>(program.ops), {});
  fences_.assign(static_cast<size_t>(program.ops), {});
}

void Trace::read_fences(core::Due due) {
  for (const BucketProgram& bucket : program_->buckets) {
    if (bucket.due != due || bucket.space == core::Space::host) continue;
    for (size_t op = 0; op < bucket.ops.size(); ++op) {
      if (bucket.ops[op].space == core::Space::host) continue;
      const size_t at = static_cast<size_t>(bucket.first_op) + op;
      const auto begin = fences_[at].begin.time_ns(), end = fences_[at].end.time_ns();
      const int64_t bytes = times_[at].bytes;
      times_[at] = begin && end ? OpTime{.begin_ns = *begin, .end_ns = *end, .bytes = bytes} : OpTime{.bytes = bytes};
    }
  }
}

Trace::Traffic Trace::traffic(core::Due due) const {
  Traffic all;
  for (const BucketProgram& bucket : program_->buckets) {
    if (bucket.due != due) continue;
    for (size_t op = 0; op < bucket.ops.size(); ++op) {
      if (!bucket.ops[op].is<Collective>()) continue;
      const OpTime& time = times_[static_cast<size_t>(bucket.first_op) + op];
      all.ms += static_cast<double>(time.end_ns - time.begin_ns) * 1e-6;
      all.bytes += time.bytes;
    }
  }
  return all;
}

std::optional<core::Error> Trace::first_not_ended(int64_t limit_ms) const {
  for (size_t b = 0; b < program_->buckets.size(); ++b) {
    const BucketProgram& bucket = program_->buckets[b];
    for (size_t op = 0; op < bucket.ops.size(); ++op) {
      const core::Fence& end = fences_[static_cast<size_t>(bucket.first_op) + op].end;
      const core::Status ended = end.wait(0);
      if (ended) continue;
      const bool is_late = !end.passed();
      return core::Error{ended.error().code,
                         "operation " + std::to_string(op) + " (" + std::string(name_of(bucket.ops[op])) +
                             ") of bucket " + std::to_string(b) +
                             (is_late ? " has not ended on the device within " + std::to_string(limit_ms) + " ms"
                                      : " failed: " + ended.error().message)};
    }
  }
  return {};
}

}  // namespace gradtune::exec
