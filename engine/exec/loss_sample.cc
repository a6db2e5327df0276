// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/loss_sample.h"

#include <algorithm>
#include <array>

#include "engine/exec/device.h"

namespace gradtune::exec {
namespace {

constexpr int64_t kAhead = 8;    // runs that are fetched before their turn, as each is in a page of its own
constexpr int64_t kBlock = 256;  // elements of a run that is encoded again: most blocks of codecs are no longer

// Eight independent sums, so that additions need not wait for each other; value(i) is squared.
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

// Inlined always, as GCC takes a function that only prefetches for one without effect and drops its calls.
[[gnu::always_inline]] inline void fetch(const RunSquares& job, int64_t first, int64_t n) {
  constexpr int64_t kLine = 64 / sizeof(float);
  for (int64_t i = first; i < first + n + kLine - 1; i += kLine) {
    const int64_t at = std::min(i, first + n - 1);
    __builtin_prefetch(job.values + at);
    if (job.others != nullptr) __builtin_prefetch(job.others + at);
  }
}

// The elements that it encodes, which are contiguous.
Range range_of(const Encode& encode) {
  int64_t begin = INT64_MAX, end = 0;
  for (const Payload& payload : encode.payloads) {
    begin = std::min(begin, payload.range.begin);
    end = std::max(end, payload.range.begin + payload.range.length);
  }
  return {begin, end - begin};
}

void add(const RunSquares& job, const BucketMemory& memory, compress::Queue& queue) {
  queue.space() == core::Space::host ? add_squares(job) : memory.device->kernels()->add_squares(job, queue);
}

// The next residual holds error_scale times the missed part, in units of the ranks' sum. So is p, unless it was made
// a share of the average before.
void sample_banked(const Encode& encode, const BucketMemory& memory, const float* gradient, compress::Queue& queue,
                   LossSample& sample) {
  const double unit = encode.share ? memory.divisor : 1;
  const Range range = range_of(encode);
  add({.values = gradient,
       .others = encode.residual ? memory.residual : nullptr,
       .range = range,
       .step = memory.step,
       .unit = unit * unit,
       .to = &sample.given},
      memory, queue);
  add({.values = reinterpret_cast<const float*>(memory.at(*encode.bank)),
       .range = range,
       .step = memory.step,
       .to = &sample.missed},
      memory, queue);
}

void sample_again(const Encode& encode, const BucketMemory& memory, const float* gradient, int64_t at,
                  compress::Queue& queue, LossSample& sample, compress::Verdict& verdict) {
  std::byte* const pool = memory.pools[queue.space()] + at;
  auto* in = reinterpret_cast<float*>(pool);
  float* out = in + kSample;
  const Range range = range_of(encode);
  int64_t n = 0;
  const Runs runs = runs_of(range, memory.step, kBlock);
  for (int64_t run = 0; run < runs.count; ++run, n += runs.length) {
    queue.copy(in + n, gradient + runs.first(run), runs.length * static_cast<int64_t>(sizeof(float)));
  }
  compress::Work work{.random = encode.random, .first_element = range.begin};
  work.random.seed = memory.seed;
  work.random.step = memory.step;
  std::byte* const payload = pool + 2 * kSample * static_cast<int64_t>(sizeof(float));
  const int64_t payload_bytes = encode.codec->payload_bytes(n);
  const compress::Encode job{
      .gradient = {in, static_cast<size_t>(n)},
      .work = work,
      .payload = {payload, static_cast<size_t>(payload_bytes)},
      .scratch = {payload + aligned(payload_bytes), static_cast<size_t>(encode.codec->scratch_bytes(n))},
      .verdict = &verdict};
  const std::span<const std::byte> payloads[] = {job.payload};
  encode.codec->encode(job, queue);
  encode.codec->decode({.payloads = payloads, .out = {out, static_cast<size_t>(n)}, .work = work, .verdict = &verdict},
                       queue);
  // A range that is no longer than the sample is one run.
  add({.values = in, .range = {0, n}, .to = &sample.given}, memory, queue);
  add({.values = in, .others = out, .sign = -1, .range = {0, n}, .to = &sample.missed}, memory, queue);
}

}  // namespace

int32_t sampled_op(const BucketProgram& bucket) {
  for (size_t i = 0; i < bucket.ops.size(); ++i) {
    const auto* const encode = bucket.ops[i].as<Encode>();
    if (encode == nullptr || range_of(*encode).length <= 0) continue;
    const core::CompressorTraits& traits = encode->codec->traits();
    if (traits.fidelity < core::Fidelity::lossy || encode->round + 1 < traits.rounds) continue;
    const bool is_visible =
        traits.error_feedback ? encode->bank.has_value() : traits.rounds == 1 && !traits.needs_matrices;
    return is_visible ? static_cast<int32_t>(i) : -1;
  }
  return -1;
}

Runs runs_of(const Range& range, uint32_t step, int64_t length) {
  if (range.length <= kSample)
    return {.begin = range.begin, .stride = range.length, .count = 1, .length = range.length, .step = step};
  const int64_t count = kSample / length;
  return {.begin = range.begin, .stride = range.length / count, .count = count, .length = length, .step = step};
}

int64_t sample_bytes(const Encode& encode) {
  if (encode.bank) return 0;
  return 2 * kSample * static_cast<int64_t>(sizeof(float)) + aligned(encode.codec->payload_bytes(kSample)) +
         aligned(encode.codec->scratch_bytes(kSample));
}

void add_squares(const RunSquares& job) {
  const Runs runs = runs_of(job.range, job.step);
  for (int64_t run = 0; run < runs.count; ++run) {
    if (run + kAhead < runs.count) fetch(job, runs.first(run + kAhead), runs.length);
    *job.to += job.unit * squares(runs.first(run), runs.length, [&](int64_t i) {
                 return job.others == nullptr ? job.values[i] : job.values[i] + job.sign * job.others[i];
               });
  }
}

void sample_residual(const BucketProgram& bucket, const BucketMemory& memory, compress::Queue& queue,
                     LossSample& sample) {
  const float* gradient = dense(bucket, memory, bucket.begins_in);
  const Range range{0, bucket.numel};
  add({.values = gradient, .range = range, .step = memory.step, .to = &sample.gradient}, memory, queue);
  add({.values = memory.residual, .range = range, .step = memory.step, .to = &sample.residual}, memory, queue);
}

void sample_error(const BucketProgram& bucket, const BucketMemory& memory, compress::Queue& queue, LossSample& sample,
                  compress::Verdict& verdict) {
  const Encode& encode = sampled_encode(bucket);
  const float* gradient = dense(bucket, memory, queue.space());
  encode.bank ? sample_banked(encode, memory, gradient, queue, sample)
              : sample_again(encode, memory, gradient, bucket.sample, queue, sample, verdict);
}

}  // namespace gradtune::exec
