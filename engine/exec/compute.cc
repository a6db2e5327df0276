// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/compute.h"

#include <algorithm>
#include <array>
#include <span>
#include <type_traits>

#include "engine/compress/simd/scaling.h"
#include "engine/exec/device.h"

namespace gradtune::exec {
namespace {

using core::DType;

compress::Rows rows_in(const compress::RowBuffer& list, const Range& range, int64_t width) {
  const int64_t first = range.begin / width, rows = range.length / width;
  const uint32_t *const begin = list.at, *const end = begin + list.count;
  const uint32_t* const from = std::lower_bound(begin, end, first);
  const uint32_t* const to = std::lower_bound(from, end, first + rows);
  return {first, rows, width, {from, to}, list.values + (from - begin) * width};
}

// Queues the work of an operation, of each kind.
struct Runner {
  const BucketProgram& bucket;
  const BucketMemory& memory;
  compress::Queue& queue;
  compress::Verdict& verdict;
  core::Space space = queue.space();

  // Any numbers can be decoded, and have the size of their type. The elements behind the bucket's end become zeros.
  core::Status operator()(const Load&) const {
    const std::span<const std::byte> from = numbers();
    bucket.plain[space]->decode({.payloads = {&from, 1}, .out = elements(), .verdict = &verdict}, queue);
    queue.fill(dense() + bucket.numel, std::byte{0}, (bucket.staged - bucket.numel) * 4);
    return {};
  }

  // A 16-bit type may not hold every fp32 value.
  core::Status operator()(const Store&) const {
    bucket.plain[space]->encode({.gradient = elements(), .payload = numbers(), .scratch = {}, .verdict = &verdict},
                                queue);
    return {};
  }

  // Scales the bucket and adds the residual, after which nothing of the residual is left.
  core::Status operator()(const Scale& work) const {
    const float factor = 1.0F / static_cast<float>(memory.divisor);
    if (bucket.dtype == DType::f32 || bucket.staged > 0) {
      scale_here(compress::Scaling{.values = elements(),
                                   .residual = work.residual ? memory.residual : nullptr,
                                   .residual_next = work.residual ? memory.residual_next : nullptr,
                                   .factor = factor,
                                   .verdict = &verdict});
    } else if (bucket.dtype == DType::f64) {
      auto* const values = reinterpret_cast<double*>(memory.at(bucket.dense[space]));
      scale_here(compress::DoubleScaling{
          .values = {values, static_cast<size_t>(bucket.numel)}, .factor = 1.0 / memory.divisor, .verdict = &verdict});
    } else {
      scale_here(NumbersScaling{.numbers = memory.at(bucket.dense[space]),
                                .dtype = bucket.dtype,
                                .n = bucket.numel,
                                .factor = factor,
                                .summed = memory.size,
                                .verdict = &verdict});
    }
    return {};
  }

  core::Status operator()(const Pack& pack) const {
    std::byte* to = memory.at(pack.to);
    for (const int64_t offset : pack.offsets) {
      queue.copy(to, memory.pools[space] + offset, pack.bytes);
      to += pack.bytes;
    }
    return {};
  }

  core::Status operator()(const Copy& copy) const {
    queue.copy(memory.at(copy.to), memory.at(copy.from), copy.bytes);
    return {};
  }

  core::Status operator()(const Collective&) const {
    core::check(false, "a collective is not run as computation");
    return {};
  }

  core::Status operator()(const Encode& encode) const {
    encode.list >= 0 ? encode_rows(encode) : encode_elements(encode);
    return {};
  }

  core::Status operator()(const Decode& decode) const {
    return decode.list >= 0 ? decode_rows(decode) : decode_elements(decode);
  }

  // Makes a list of the arrived gradient. A row number out of range is the caller's mistake, and ends the step.
  core::Status operator()(const Collect& collect) const {
    const RowLists& lists = *bucket.lists;
    RowState& state = *memory.rows;
    for (size_t i = 0; i < state.lists.size(); ++i) {
      state.lists[i] = {reinterpret_cast<uint32_t*>(memory.pools[core::Space::host] + lists.places[i].at),
                        reinterpret_cast<float*>(memory.pools[core::Space::host] + lists.places[i].values), lists.rows,
                        0};
    }
    compress::RowBuffer& list = state.lists[static_cast<size_t>(collect.list)];
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
    return {};
  }

  void decode_own(const Encode& encode) const {
    for (const Payload& payload : encode.payloads) {
      const std::span<const std::byte> bytes = bytes_of(payload);
      encode.codec->decode({.payloads = {&bytes, 1},
                            .out = elements(payload.range),
                            .work = work_on(payload, encode),
                            .verdict = &verdict},
                           queue);
    }
  }

 private:
  float* dense() const { return exec::dense(bucket, memory, space); }
  std::span<float> elements(const Range& range) const {
    return {dense() + range.begin, static_cast<size_t>(range.length)};
  }
  std::span<float> elements() const { return elements({0, bucket.numel}); }
  std::span<std::byte> bytes_at(int64_t offset, int64_t bytes) const {
    return {memory.pools[space] + offset, static_cast<size_t>(bytes)};
  }
  std::span<std::byte> bytes_of(const Payload& payload) const { return bytes_at(payload.offset, payload.bytes); }
  std::span<std::byte> numbers() const {
    const int64_t bytes = bucket.numel * core::bytes_per_element(bucket.dtype);
    return {memory.at(bucket.numbers[space]), static_cast<size_t>(bytes)};
  }

  template <typename Job>
  void scale_here(const Job& job) const {
    if (space != core::Space::host) return memory.device->kernels()->scale(job, queue);
    if constexpr (std::is_same_v<Job, NumbersScaling>) {
      scale(job, *bucket.plain[space], compress::host(queue));
    } else {
      compress::scale(job, queue);
    }
  }

  compress::Work work_on(const Payload& payload, const Coding& coding) const {
    compress::Work work{.matrices = payload.matrices,
                        .random = coding.random,
                        .first_element = bucket.arena_begin + payload.range.begin,
                        .round = coding.round,
                        .round_memory = memory.pools[space] + coding.round_memory};
    work.random.seed = memory.seed;
    work.random.step = memory.step;
    if (payload.state >= 0) {
      work.state = memory.state[space] + payload.state;
      work.state_next = memory.state_next[space] + payload.state;
    }
    return work;
  }

  void encode_elements(const Encode& encode) const {
    const auto divisor = static_cast<float>(memory.divisor);
    auto* const bank = encode.bank ? reinterpret_cast<float*>(memory.at(*encode.bank)) : nullptr;
    for (const Payload& payload : encode.payloads) {
      const compress::Encode job{.gradient = elements(payload.range),
                                 .residual = encode.residual ? memory.residual + payload.range.begin : nullptr,
                                 .residual_next = encode.bank ? bank + payload.range.begin : nullptr,
                                 .add_to_residual_next = encode.share,
                                 .scale = encode.share ? 1.0F : 1.0F / divisor,
                                 .error_scale = divisor,
                                 .summed = encode.summed,
                                 .work = work_on(payload, encode),
                                 .payload = bytes_of(payload),
                                 .scratch = bytes_at(encode.scratch.offset, encode.scratch.bytes),
                                 .verdict = &verdict};
      encode.codec->encode(job, queue);
    }
  }

  // Payloads of one range are adjacent and are added up in one pass.
  core::Status decode_elements(const Decode& decode) const {
    constexpr size_t kAtOnce = 64;
    std::array<std::span<const std::byte>, kAtOnce> spans;
    const std::vector<Payload>& payloads = decode.payloads;
    for (size_t first = 0; first < payloads.size();) {
      const compress::Work work = work_on(payloads[first], decode);
      const Range range = payloads[first].range;
      size_t next = first;
      bool accumulate = false;
      while (next < payloads.size() && payloads[next].range == range) {
        size_t count = 0;
        while (count < kAtOnce && next < payloads.size() && payloads[next].range == range) {
          spans[count++] = bytes_of(payloads[next++]);
        }
        const compress::Decode job{.payloads = {spans.data(), count},
                                   .summed = decode.summed,
                                   .out = elements(range),
                                   .accumulate = accumulate,
                                   .work = work,
                                   .verdict = &verdict};
        decode.codec->decode(job, queue);
        if (space == core::Space::host && verdict.rejected > 0) return decode.codec->defect(job, verdict.rejected - 1);
        accumulate = true;
      }
      first = next;
    }
    return {};
  }

  void encode_rows(const Encode& encode) const {
    const compress::RowBuffer& list = memory.rows->lists[static_cast<size_t>(encode.list)];
    for (const Payload& payload : encode.payloads) {
      encode.codec->rows()->encode_rows({.rows = rows_in(list, payload.range, bucket.lists->width),
                                         .scale = encode.share ? 1.0F : 1.0F / static_cast<float>(memory.divisor),
                                         .payload = bytes_of(payload),
                                         .verdict = &verdict},
                                        compress::host(queue));
    }
  }

  // Payloads of one range, from all ranks that have some, are added up at once.
  core::Status decode_rows(const Decode& decode) const {
    const int64_t width = bucket.lists->width;
    compress::RowBuffer& list = memory.rows->lists[static_cast<size_t>(decode.list)];
    list.count = 0;
    std::vector<std::span<const std::byte>>& spans = memory.rows->spans;
    for (size_t first = 0; first < decode.payloads.size();) {
      const Range range = decode.payloads[first].range;
      spans.clear();
      for (; first < decode.payloads.size() && decode.payloads[first].range.begin == range.begin; ++first) {
        const Payload& payload = decode.payloads[first];
        if (payload.range.length == range.length) spans.emplace_back(bytes_of(payload));
      }
      const compress::DecodeRows job{.payloads = spans,
                                     .first = range.begin / width,
                                     .rows = range.length / width,
                                     .width = width,
                                     .out = &list,
                                     .verdict = &verdict};
      decode.codec->rows()->decode_rows(job, compress::host(queue));
      if (verdict.rejected > 0) return decode.codec->rows()->defect_of_rows(job, verdict.rejected - 1);
    }
    return {};
  }
};

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

void decode_own(const BucketProgram& bucket, const Encode& encode, const BucketMemory& memory, compress::Queue& queue,
                compress::Verdict& verdict) {
  Runner{bucket, memory, queue, verdict}.decode_own(encode);
}

core::Status run_op(const BucketProgram& bucket, const Op& op, const BucketMemory& memory, compress::Queue& queue,
                    compress::Verdict& verdict) {
  return std::visit(Runner{bucket, memory, queue, verdict}, op.work);
}

}  // namespace gradtune::exec
