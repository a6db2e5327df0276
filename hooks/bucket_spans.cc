// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/bucket_spans.h"

#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/csrc/profiler/api.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

namespace gradtune {
namespace {

// The profiler's clock shows microseconds since 1970.
int64_t profiler_ahead_us(const core::Clock& clock) {
  using std::chrono::duration_cast, std::chrono::microseconds, std::chrono::system_clock;
  return duration_cast<microseconds>(system_clock::now().time_since_epoch()).count() - clock.now_ns() / 1000;
}

std::string span_name(size_t number, const core::Option& option) {
  std::string codecs;
  for (const core::CompressorSpec& codec : option.codecs) {
    codecs += (codecs.empty() ? "" : " + ") + core::to_string(codec);
  }
  return "gradtune::bucket " + std::to_string(number) + " (" + (codecs.empty() ? "none" : codecs) + ")";
}

}  // namespace

void show_buckets(const exec::Program& program, const std::vector<exec::OpTime>& times, const core::Clock& clock) {
  if (!torch::profiler::impl::profilerEnabled()) return;
  const int64_t ahead_us = profiler_ahead_us(clock);
  for (size_t number = 0; number < program.buckets.size(); ++number) {
    const exec::BucketProgram& bucket = program.buckets[number];
    int64_t begin_ns = INT64_MAX, end_ns = 0;
    for (size_t op = 0; op < bucket.ops.size(); ++op) {
      const exec::OpTime& time = times[static_cast<size_t>(bucket.first_op) + op];
      if (time.end_ns == 0) continue;
      begin_ns = std::min(begin_ns, time.begin_ns);
      end_ns = std::max(end_ns, time.end_ns);
    }
    if (end_ns == 0) continue;
    torch::autograd::profiler::reportBackendEventToActiveKinetoProfiler(
        begin_ns / 1000 + ahead_us, end_ns / 1000 + ahead_us, /*debug_handle=*/-1, at::RecordScope::USER_SCOPE,
        span_name(number, program.strategy.buckets[number].option), "gradtune");
  }
}

}  // namespace gradtune
