// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/loss_sample.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace gradtune::exec {
namespace {

// Calls body(first element, elements) for each run.
template <typename Body>
void for_runs(const Range& range, uint32_t step, Body body) {
  if (range.length <= kSample) return body(range.begin, range.length);
  const int64_t stride = range.length / kRuns;
  const int64_t shift = static_cast<int64_t>(step * 0x9e3779b9U) % (stride - kRun + 1);
  for (int64_t run = 0; run < kRuns; ++run) body(range.begin + run * stride + shift, kRun);
}

// Eight sums that do not wait for each other; value(i) is squared.
template <typename Value>
double squares(int64_t begin, int64_t n, Value value) {
  constexpr int64_t kLanes = 8;
  std::array<double, kLanes> sums{};
  for (int64_t i = 0; i + kLanes <= n; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const auto x = static_cast<double>(value(begin + i + lane));
      sums[static_cast<size_t>(lane)] += x * x;
    }
  }
  double sum = 0;
  for (const double lane : sums) sum += lane;
  for (int64_t i = n / kLanes * kLanes; i < n; ++i) {
    const auto x = static_cast<double>(value(begin + i));
    sum += x * x;
  }
  return sum;
}

// The elements that an operation encodes, which lie side by side.
Range range_of(const Op& op) {
  int64_t begin = INT64_MAX, end = 0;
  for (const Payload& payload : op.payloads) {
    begin = std::min(begin, payload.range.begin);
    end = std::max(end, payload.range.begin + payload.range.length);
  }
  return {begin, end - begin};
}

// The next residual holds error_scale times what was missed: in units of the ranks' sum, as p is unless it was made a
// share of the average before.
void sample_banked(const Op& op, const BucketMemory& memory, const float* gradient, LossSample& sample) {
  const double unit = op.share ? memory.size : 1;
  for_runs(range_of(op), memory.step, [&](int64_t begin, int64_t n) {
    sample.given += unit * unit * squares(begin, n, [&](int64_t i) {
                      return op.residual ? gradient[i] + memory.residual[i] : gradient[i];
                    });
    sample.missed += squares(begin, n, [&](int64_t i) { return memory.residual_next[i]; });
  });
}

void sample_again(const Op& op, const BucketMemory& memory, const float* gradient, int64_t at,
                  compress::HostQueue& queue, LossSample& sample) {
  std::byte* const pool = memory.pool + at;
  auto* in = reinterpret_cast<float*>(pool);
  float* out = in + kSample;
  const Range range = range_of(op);
  int64_t n = 0;
  for_runs(range, memory.step, [&](int64_t begin, int64_t length) {
    std::memcpy(in + n, gradient + begin, static_cast<size_t>(length) * sizeof(float));
    n += length;
  });
  compress::Work work{.random = op.random, .first_element = range.begin};
  work.random.seed = memory.seed;
  work.random.step = memory.step;
  std::byte* const payload = pool + 2 * kSample * static_cast<int64_t>(sizeof(float));
  const int64_t payload_bytes = op.codec->payload_bytes(n);
  compress::Verdict verdict;
  const compress::Encode encode{
      .gradient = {in, static_cast<size_t>(n)},
      .work = work,
      .payload = {payload, static_cast<size_t>(payload_bytes)},
      .scratch = {payload + aligned(payload_bytes), static_cast<size_t>(op.codec->scratch_bytes(n))},
      .verdict = &verdict};
  const std::span<const std::byte> payloads[] = {encode.payload};
  op.codec->encode(encode, queue);
  op.codec->decode({.payloads = payloads, .out = {out, static_cast<size_t>(n)}, .work = work, .verdict = &verdict},
                   queue);
  if (verdict.nonfinite != 0 || verdict.rejected != 0) return;
  sample.given = squares(0, n, [&](int64_t i) { return in[i]; });
  sample.missed = squares(0, n, [&](int64_t i) { return in[i] - out[i]; });
}

}  // namespace

int32_t sampled_op(const BucketProgram& bucket) {
  for (size_t i = 0; i < bucket.ops.size(); ++i) {
    const Op& op = bucket.ops[i];
    if (op.kind != Op::Kind::encode || range_of(op).length <= 0) continue;
    const core::CompressorTraits& traits = op.codec->traits();
    if (traits.fidelity < core::Fidelity::lossy || op.round + 1 < traits.rounds) continue;
    const bool is_visible = traits.error_feedback ? op.banks : traits.rounds == 1 && !traits.needs_matrices;
    return is_visible ? static_cast<int32_t>(i) : -1;
  }
  return -1;
}

int64_t sample_bytes(const Op& op) {
  if (op.banks) return 0;
  return 2 * kSample * static_cast<int64_t>(sizeof(float)) + aligned(op.codec->payload_bytes(kSample)) +
         aligned(op.codec->scratch_bytes(kSample));
}

void sample_residual(const BucketProgram& bucket, const BucketMemory& memory, LossSample& sample) {
  const float* gradient = dense(bucket, memory);
  for_runs({0, bucket.numel}, memory.step, [&](int64_t begin, int64_t n) {
    sample.gradient += squares(begin, n, [&](int64_t i) { return gradient[i]; });
    sample.residual += squares(begin, n, [&](int64_t i) { return memory.residual[i]; });
  });
}

void sample_error(const BucketProgram& bucket, const Op& op, const BucketMemory& memory, compress::HostQueue& queue,
                  LossSample& sample) {
  op.banks ? sample_banked(op, memory, dense(bucket, memory), sample)
           : sample_again(op, memory, dense(bucket, memory), bucket.sample, queue, sample);
}

}  // namespace gradtune::exec
