// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/compute.h"

#include <algorithm>
#include <array>
#include <span>

#include "engine/compress/scaling.h"

namespace gradtune::exec {
namespace {

using core::DType;

// Gradients are payloads of the codec of their type, which can be decoded whatever they are.
void read_plain(const BucketProgram& bucket, std::span<const std::byte> numbers, std::span<float> out,
                compress::Queue& queue) {
  compress::Verdict verdict;
  bucket.plain->decode({.payloads = {&numbers, 1}, .out = out, .verdict = &verdict}, queue);
  core::check(verdict.rejected == 0, "numbers have the size of their type");
}

// With the residual, of which nothing is left then.
void scale(const BucketProgram& bucket, const Op& op, const BucketMemory& memory, compress::Queue& queue,
           compress::Verdict& verdict) {
  const float factor = 1.0F / static_cast<float>(memory.size);
  if (bucket.dtype == DType::f32 || bucket.staging >= 0) {
    return compress::scale({.values = {dense(bucket, memory), static_cast<size_t>(bucket.numel)},
                            .residual = op.residual ? memory.residual : nullptr,
                            .residual_next = op.residual ? memory.residual_next : nullptr,
                            .factor = factor,
                            .verdict = &verdict},
                           queue);
  }
  // 16-bit numbers in their place, which all ranks' are added to: as the codec of that type reads and writes them.
  constexpr int64_t kTile = 4096;
  std::array<float, kTile> tile;
  for (int64_t begin = 0; begin < bucket.numel; begin += kTile) {
    const std::span<float> values(tile.data(), static_cast<size_t>(std::min(kTile, bucket.numel - begin)));
    const std::span<std::byte> numbers(memory.gradient + begin * 2, values.size() * 2);
    read_plain(bucket, numbers, values, queue);
    bucket.plain->encode({.gradient = values,
                          .scale = factor,
                          .summed = memory.size,
                          .payload = numbers,
                          .scratch = {},
                          .verdict = &verdict},
                         queue);
  }
}

std::span<std::byte> gradient_of(const BucketProgram& bucket, const BucketMemory& memory) {
  return {memory.gradient, static_cast<size_t>(bucket.numel * core::bytes_per_element(bucket.dtype))};
}

// Behind the bucket's elements stand zeros.
void load(const BucketProgram& bucket, const BucketMemory& memory, compress::Queue& queue) {
  auto* const to = reinterpret_cast<float*>(memory.pool + bucket.staging);
  read_plain(bucket, gradient_of(bucket, memory), {to, static_cast<size_t>(bucket.numel)}, queue);
  std::fill(to + bucket.numel, to + bucket.staged, 0.0F);
}

// A 16-bit type may not hold what fp32 does.
void store(const BucketProgram& bucket, const BucketMemory& memory, compress::Queue& queue,
           compress::Verdict& verdict) {
  const auto* const from = reinterpret_cast<const float*>(memory.pool + bucket.staging);
  bucket.plain->encode({.gradient = {from, static_cast<size_t>(bucket.numel)},
                        .payload = gradient_of(bucket, memory),
                        .scratch = {},
                        .verdict = &verdict},
                       queue);
}

void pack(const Op& op, const BucketMemory& memory, compress::Queue& queue) {
  std::byte* to = memory.pool + op.output;
  for (const Payload& payload : op.payloads) {
    queue.copy(to, memory.pool + payload.offset, payload.bytes);
    to += payload.bytes;
  }
}

compress::Work work_on(const Payload& payload, const BucketProgram& bucket, const Op& op, const BucketMemory& memory) {
  compress::Work work{.matrices = payload.matrices,
                      .random = op.random,
                      .first_element = bucket.arena_begin + payload.range.begin,
                      .round = op.round,
                      .round_memory = memory.pool + op.round_memory};
  work.random.seed = memory.seed;
  work.random.step = memory.step;
  if (payload.state >= 0) {
    work.state = memory.state + payload.state;
    work.state_next = memory.state_next + payload.state;
  }
  return work;
}

void encode(const BucketProgram& bucket, const Op& op, const BucketMemory& memory, compress::Queue& queue,
            compress::Verdict& verdict) {
  const auto size = static_cast<float>(memory.size);
  for (const Payload& payload : op.payloads) {
    const compress::Encode job{
        .gradient = {dense(bucket, memory) + payload.range.begin, static_cast<size_t>(payload.range.length)},
        .residual = op.residual ? memory.residual + payload.range.begin : nullptr,
        .residual_next = op.banks ? memory.residual_next + payload.range.begin : nullptr,
        .add_to_residual_next = op.share,
        .scale = op.share ? 1.0F : 1.0F / size,
        .error_scale = size,
        .summed = op.summed,
        .work = work_on(payload, bucket, op, memory),
        .payload = {memory.pool + payload.offset, static_cast<size_t>(payload.bytes)},
        .scratch = {memory.pool + op.scratch, static_cast<size_t>(op.scratch_bytes)},
        .verdict = &verdict};
    op.codec->encode(job, queue);
  }
}

// Payloads of one range stand next to each other: they are added up in one pass.
core::Status decode(const BucketProgram& bucket, const Op& op, const BucketMemory& memory, compress::Queue& queue,
                    compress::Verdict& verdict) {
  constexpr size_t kAtOnce = 64;
  std::array<std::span<const std::byte>, kAtOnce> spans;
  for (size_t first = 0; first < op.payloads.size();) {
    const compress::Work work = work_on(op.payloads[first], bucket, op, memory);
    const Range range = op.payloads[first].range;
    const std::span<float> out{dense(bucket, memory) + range.begin, static_cast<size_t>(range.length)};
    size_t next = first;
    bool accumulate = false;
    while (next < op.payloads.size() && op.payloads[next].range.begin == range.begin &&
           op.payloads[next].range.length == range.length) {
      size_t count = 0;
      while (count < kAtOnce && next < op.payloads.size() && op.payloads[next].range.begin == range.begin &&
             op.payloads[next].range.length == range.length) {
        const Payload& payload = op.payloads[next++];
        spans[count++] = {memory.pool + payload.offset, static_cast<size_t>(payload.bytes)};
      }
      const compress::Decode job{.payloads = {spans.data(), count},
                                 .summed = op.summed,
                                 .out = out,
                                 .accumulate = accumulate,
                                 .work = work,
                                 .verdict = &verdict};
      op.codec->decode(job, queue);
      if (queue.mark().passed() && verdict.rejected > 0) return op.codec->defect(job, verdict.rejected - 1);
      accumulate = true;
    }
    first = next;
  }
  return {};
}

}  // namespace

float* dense(const BucketProgram& bucket, const BucketMemory& memory) {
  return reinterpret_cast<float*>(bucket.staging >= 0 ? memory.pool + bucket.staging : memory.gradient);
}

core::Status run_op(const BucketProgram& bucket, const Op& op, const BucketMemory& memory, compress::Queue& queue,
                    compress::Verdict& verdict) {
  switch (op.kind) {
    case Op::Kind::scale: scale(bucket, op, memory, queue, verdict); break;
    case Op::Kind::pack: pack(op, memory, queue); break;
    case Op::Kind::load: load(bucket, memory, queue); break;
    case Op::Kind::store: store(bucket, memory, queue, verdict); break;
    case Op::Kind::encode: encode(bucket, op, memory, queue, verdict); break;
    case Op::Kind::decode: return decode(bucket, op, memory, queue, verdict);
    case Op::Kind::collective: core::check(false, "a collective is not run as computation");
  }
  return {};
}

}  // namespace gradtune::exec
