// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/compute.h"

#include <algorithm>
#include <array>
#include <span>

#include "engine/compress/simd/scaling.h"
#include "engine/exec/device.h"

namespace gradtune::exec {
namespace {

using core::DType;

// Scales the bucket and adds the residual, after which nothing of the residual is left.
void scale_bucket(const BucketProgram& bucket, const Op& op, const BucketMemory& memory, compress::Queue& queue,
                  compress::Verdict& verdict) {
  const float factor = 1.0F / static_cast<float>(memory.size);
  if (bucket.dtype == DType::f32 || bucket.staged > 0) {
    const compress::Scaling job{.values = {dense(bucket, memory, op.space), static_cast<size_t>(bucket.numel)},
                                .residual = op.residual ? memory.residual : nullptr,
                                .residual_next = op.residual ? memory.residual_next : nullptr,
                                .factor = factor,
                                .verdict = &verdict};
    return op.space == core::Space::host ? compress::scale(job, queue) : memory.device->kernels()->scale(job, queue);
  }
  if (bucket.dtype == DType::f64) {
    const compress::DoubleScaling job{
        .values = {reinterpret_cast<double*>(memory.at(bucket.dense[op.space])), static_cast<size_t>(bucket.numel)},
        .factor = 1.0 / memory.size,
        .verdict = &verdict};
    return op.space == core::Space::host ? compress::scale(job, queue) : memory.device->kernels()->scale(job, queue);
  }
  const NumbersScaling job{.numbers = memory.at(bucket.dense[op.space]),
                           .dtype = bucket.dtype,
                           .n = bucket.numel,
                           .factor = factor,
                           .summed = memory.size,
                           .verdict = &verdict};
  if (op.space != core::Space::host) return memory.device->kernels()->scale(job, queue);
  scale(job, *bucket.plain[op.space], compress::host(queue));
}

std::span<std::byte> numbers_of(const BucketProgram& bucket, const Op& op, const BucketMemory& memory) {
  return {memory.at(bucket.numbers[op.space]),
          static_cast<size_t>(bucket.numel * core::bytes_per_element(bucket.dtype))};
}

// The elements behind the bucket's end become zeros. Any numbers can be decoded, and have the size of their type.
void load(const BucketProgram& bucket, const Op& op, const BucketMemory& memory, compress::Queue& queue,
          compress::Verdict& verdict) {
  float* const to = dense(bucket, memory, op.space);
  const std::span<const std::byte> numbers = numbers_of(bucket, op, memory);
  bucket.plain[op.space]->decode(
      {.payloads = {&numbers, 1}, .out = {to, static_cast<size_t>(bucket.numel)}, .verdict = &verdict}, queue);
  queue.fill(to + bucket.numel, std::byte{0}, (bucket.staged - bucket.numel) * 4);
}

// A 16-bit type may not hold every fp32 value.
void store(const BucketProgram& bucket, const Op& op, const BucketMemory& memory, compress::Queue& queue,
           compress::Verdict& verdict) {
  const float* const from = dense(bucket, memory, op.space);
  bucket.plain[op.space]->encode({.gradient = {from, static_cast<size_t>(bucket.numel)},
                                  .payload = numbers_of(bucket, op, memory),
                                  .scratch = {},
                                  .verdict = &verdict},
                                 queue);
}

void pack(const Op& op, const BucketMemory& memory, compress::Queue& queue) {
  std::byte* to = memory.at(op.output);
  for (const Payload& payload : op.payloads) {
    queue.copy(to, memory.pools[op.space] + payload.offset, payload.bytes);
    to += payload.bytes;
  }
}

compress::Work work_on(const Payload& payload, const BucketProgram& bucket, const Op& op, const BucketMemory& memory) {
  compress::Work work{.matrices = payload.matrices,
                      .random = op.random,
                      .first_element = bucket.arena_begin + payload.range.begin,
                      .round = op.round,
                      .round_memory = memory.pools[op.space] + op.round_memory};
  work.random.seed = memory.seed;
  work.random.step = memory.step;
  if (payload.state >= 0) {
    work.state = memory.state[op.space] + payload.state;
    work.state_next = memory.state_next[op.space] + payload.state;
  }
  return work;
}

void encode(const BucketProgram& bucket, const Op& op, const BucketMemory& memory, compress::Queue& queue,
            compress::Verdict& verdict) {
  const auto size = static_cast<float>(memory.size);
  auto* const bank = op.banks ? reinterpret_cast<float*>(memory.at(op.bank)) : nullptr;
  for (const Payload& payload : op.payloads) {
    const compress::Encode job{
        .gradient = {dense(bucket, memory, op.space) + payload.range.begin, static_cast<size_t>(payload.range.length)},
        .residual = op.residual ? memory.residual + payload.range.begin : nullptr,
        .residual_next = op.banks ? bank + payload.range.begin : nullptr,
        .add_to_residual_next = op.share,
        .scale = op.share ? 1.0F : 1.0F / size,
        .error_scale = size,
        .summed = op.summed,
        .work = work_on(payload, bucket, op, memory),
        .payload = {memory.pools[op.space] + payload.offset, static_cast<size_t>(payload.bytes)},
        .scratch = {memory.pools[op.space] + op.scratch, static_cast<size_t>(op.scratch_bytes)},
        .verdict = &verdict};
    op.codec->encode(job, queue);
  }
}

// Payloads of one range are adjacent and are added up in one pass.
core::Status decode(const BucketProgram& bucket, const Op& op, const BucketMemory& memory, compress::Queue& queue,
                    compress::Verdict& verdict) {
  constexpr size_t kAtOnce = 64;
  std::array<std::span<const std::byte>, kAtOnce> spans;
  for (size_t first = 0; first < op.payloads.size();) {
    const compress::Work work = work_on(op.payloads[first], bucket, op, memory);
    const Range range = op.payloads[first].range;
    const std::span<float> out{dense(bucket, memory, op.space) + range.begin, static_cast<size_t>(range.length)};
    size_t next = first;
    bool accumulate = false;
    while (next < op.payloads.size() && op.payloads[next].range.begin == range.begin &&
           op.payloads[next].range.length == range.length) {
      size_t count = 0;
      while (count < kAtOnce && next < op.payloads.size() && op.payloads[next].range.begin == range.begin &&
             op.payloads[next].range.length == range.length) {
        const Payload& payload = op.payloads[next++];
        spans[count++] = {memory.pools[op.space] + payload.offset, static_cast<size_t>(payload.bytes)};
      }
      const compress::Decode job{.payloads = {spans.data(), count},
                                 .summed = op.summed,
                                 .out = out,
                                 .accumulate = accumulate,
                                 .work = work,
                                 .verdict = &verdict};
      op.codec->decode(job, queue);
      if (op.space == core::Space::host && verdict.rejected > 0) return op.codec->defect(job, verdict.rejected - 1);
      accumulate = true;
    }
    first = next;
  }
  return {};
}

// Makes a list of the arrived gradient. A row number out of range is the caller's mistake, and ends the step.
void collect(const BucketProgram& bucket, const Op& op, const BucketMemory& memory) {
  const RowLists& lists = *bucket.lists;
  RowState& state = *memory.rows;
  for (size_t i = 0; i < state.lists.size(); ++i) {
    state.lists[i] = {reinterpret_cast<uint32_t*>(memory.pools[core::Space::host] + lists.places[i].at),
                      reinterpret_cast<float*>(memory.pools[core::Space::host] + lists.places[i].values), lists.rows,
                      0};
  }
  compress::RowBuffer& list = state.lists[static_cast<size_t>(op.list)];
  const auto* const values = reinterpret_cast<const float*>(
      state.arrived.kind == Arrived::Kind::in_place ? memory.gradient : state.arrived.values);
  switch (state.arrived.kind) {
    case Arrived::Kind::none: break;
    case Arrived::Kind::rows:
      compress::collect_rows({state.arrived.rows, values, state.arrived.order}, lists.width, state.order, list,
                             state.scratch)
          .value();
      break;
    case Arrived::Kind::in_place:
    case Arrived::Kind::dense: compress::collect_dense(values, lists.width, state.order, list, state.scratch); break;
  }
  state.own = list.count;
}

compress::Rows rows_in(const compress::RowBuffer& list, const Range& range, int64_t width) {
  const int64_t first = range.begin / width, rows = range.length / width;
  const uint32_t *const begin = list.at, *const end = begin + list.count;
  const uint32_t* const from = std::lower_bound(begin, end, first);
  const uint32_t* const to = std::lower_bound(from, end, first + rows);
  return {first, rows, width, {from, to}, list.values + (from - begin) * width};
}

void encode_rows(const BucketProgram& bucket, const Op& op, const BucketMemory& memory, compress::Queue& queue,
                 compress::Verdict& verdict) {
  const compress::RowBuffer& list = memory.rows->lists[static_cast<size_t>(op.list)];
  for (const Payload& payload : op.payloads) {
    op.codec->rows()->encode_rows(
        {.rows = rows_in(list, payload.range, bucket.lists->width),
         .scale = op.share ? 1.0F : 1.0F / static_cast<float>(memory.size),
         .payload = {memory.pools[core::Space::host] + payload.offset, static_cast<size_t>(payload.bytes)},
         .verdict = &verdict},
        compress::host(queue));
  }
}

// Payloads of one range, from all ranks that have some, are added up at once.
core::Status decode_rows(const BucketProgram& bucket, const Op& op, const BucketMemory& memory, compress::Queue& queue,
                         compress::Verdict& verdict) {
  const int64_t width = bucket.lists->width;
  compress::RowBuffer& list = memory.rows->lists[static_cast<size_t>(op.list)];
  list.count = 0;
  std::vector<std::span<const std::byte>>& spans = memory.rows->spans;
  for (size_t first = 0; first < op.payloads.size();) {
    const Range range = op.payloads[first].range;
    spans.clear();
    for (; first < op.payloads.size() && op.payloads[first].range.begin == range.begin; ++first) {
      const Payload& payload = op.payloads[first];
      if (payload.range.length == range.length) {
        spans.emplace_back(memory.pools[core::Space::host] + payload.offset, static_cast<size_t>(payload.bytes));
      }
    }
    const compress::DecodeRows job{.payloads = spans,
                                   .first = range.begin / width,
                                   .rows = range.length / width,
                                   .width = width,
                                   .out = &list,
                                   .verdict = &verdict};
    op.codec->rows()->decode_rows(job, compress::host(queue));
    if (verdict.rejected > 0) return op.codec->rows()->defect_of_rows(job, verdict.rejected - 1);
  }
  return {};
}

}  // namespace

std::byte* BucketMemory::at(const Address& address) const {
  switch (address.region) {
    case Address::Region::host_pool: return pools[core::Space::host] + address.offset;
    case Address::Region::cuda_pool: return pools[core::Space::cuda] + address.offset;
    case Address::Region::gradient: return gradient + address.offset;
    case Address::Region::next_residual: return reinterpret_cast<std::byte*>(residual_next) + address.offset;
  }
  return nullptr;
}

float* dense(const BucketProgram& bucket, const BucketMemory& memory, core::Space space) {
  return reinterpret_cast<float*>(memory.at(bucket.dense[space]));
}

void scale(const NumbersScaling& job, const compress::Compressor& codec, compress::HostQueue& queue) {
  constexpr int64_t kTile = 4096;
  std::array<float, kTile> tile;
  for (int64_t begin = 0; begin < job.n; begin += kTile) {
    const std::span<float> values(tile.data(), static_cast<size_t>(std::min(kTile, job.n - begin)));
    const std::span<std::byte> numbers(job.numbers + begin * 2, values.size() * 2);
    const std::span<const std::byte> payload = numbers;
    codec.decode({.payloads = {&payload, 1}, .out = values, .verdict = job.verdict}, queue);
    codec.encode({.gradient = values,
                  .scale = job.factor,
                  .summed = job.summed,
                  .payload = numbers,
                  .scratch = {},
                  .verdict = job.verdict},
                 queue);
  }
}

void decode_own(const BucketProgram& bucket, const Op& op, const BucketMemory& memory, compress::Queue& queue,
                compress::Verdict& verdict) {
  for (const Payload& payload : op.payloads) {
    const std::span<const std::byte> bytes{memory.pools[op.space] + payload.offset, static_cast<size_t>(payload.bytes)};
    op.codec->decode(
        {.payloads = {&bytes, 1},
         .out = {dense(bucket, memory, op.space) + payload.range.begin, static_cast<size_t>(payload.range.length)},
         .work = work_on(payload, bucket, op, memory),
         .verdict = &verdict},
        queue);
  }
}

core::Status run_op(const BucketProgram& bucket, const Op& op, const BucketMemory& memory, compress::Queue& queue,
                    compress::Verdict& verdict) {
  switch (op.kind) {
    case Op::Kind::scale: scale_bucket(bucket, op, memory, queue, verdict); break;
    case Op::Kind::pack: pack(op, memory, queue); break;
    case Op::Kind::collect: collect(bucket, op, memory); break;
    case Op::Kind::load: load(bucket, op, memory, queue, verdict); break;
    case Op::Kind::store: store(bucket, op, memory, queue, verdict); break;
    case Op::Kind::encode: (op.list >= 0 ? encode_rows : encode)(bucket, op, memory, queue, verdict); break;
    case Op::Kind::decode: return (op.list >= 0 ? decode_rows : decode)(bucket, op, memory, queue, verdict);
    case Op::Kind::copy: queue.copy(memory.at(op.output), memory.at(op.input), op.count); break;
    case Op::Kind::collective: core::check(false, "a collective is not run as computation");
  }
  return {};
}

}  // namespace gradtune::exec
