// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// `packed` and `bf16packed` on a device: a warp has a group of 64 elements, two to a lane, and a block of threads a run
// of 128 groups. The place of a run's groups is known when all earlier runs have their headers, so elements are read
// twice: for headers, and for groups. Decode reads each payload once.
#include "engine/compress/cuda/device_compressor.h"
#include "engine/compress/cuda/runs.cuh"
#include "engine/compress/packed/packed_layout.h"

namespace gradtune::compress::cuda {
namespace {

constexpr int kGroups = kPackedRun / kGroupElements;  // of a run
constexpr int kGroupsOfWarp = kGroups / kWarps;

struct EncodeJob {
  Elements of;
  std::byte* payload;
  uint32_t* ends;  // of runs: first their lengths, then where they end, in units
  PackedLayout layout;
};

template <PackedType kType>
__device__ __forceinline__ int64_t bytes_of_group(int bits) {
  return bits == GroupHeader::kNoGroup ? 0 : 8 * bits + kGroupElements * (kType == PackedType::f32 ? 3 : 1);
}

// The bits of what is sent, as an fp32 number; of an element behind the last one those of zero.
template <PackedType kType>
__device__ __forceinline__ uint32_t sent_bits(const Elements& of, int64_t i, float& sent) {
  sent = i < of.n ? load_p(of, i) * of.scale : 0.0F;
  return kType == PackedType::bf16 ? narrow_bf16(sent) << 16 : __float_as_uint(sent);
}

// Headers of groups, errors, and lengths of runs.
template <PackedType kType>
struct WriteHeaders {
  using Job = EncodeJob;
  struct Shared {
    uint32_t bytes[kWarps];
  };

  static __device__ void run(const Job& job, uint32_t run) {
    GRADTUNE_SHARED(Shared, shared);
    const int64_t first_group = int64_t{run} * kGroups + warp_of_block() * kGroupsOfWarp;
    auto* const headers = reinterpret_cast<GroupHeader*>(job.payload + job.layout.headers_at);
    uint32_t bytes = 0;
    bool finite = true;
#pragma unroll 4
    for (int g = 0; g < kGroupsOfWarp; ++g) {
      const int64_t group = first_group + g;
      if (group >= job.layout.groups) break;
      const int64_t i = group * kGroupElements + lane_of_warp();
      uint32_t most = 0, least = ~0U, any = 0;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float sent;
        const uint32_t bits = sent_bits<kType>(job.of, i + 32 * h, sent), exponent = (bits & kAbsBits) >> 23;
        any |= bits;
        most = exponent > most ? exponent : most;
        least = exponent - 1 < least ? exponent - 1 : least;
        if (job.of.next == nullptr || i + 32 * h >= job.of.n) continue;
        const float missed = (sent - __uint_as_float(bits)) * job.of.error_scale;
        float* const to = job.of.next + i + 32 * h;
        *to = job.of.add ? *to + missed : missed;
      }
      any = __reduce_or_sync(kAllLanes, any);
      most = __reduce_max_sync(kAllLanes, most);
      least = __reduce_min_sync(kAllLanes, least);
      GroupHeader header{0, GroupHeader::kNoGroup};
      if (any != 0) {
        const uint32_t base = most == 0 ? 0 : least;
        header = {static_cast<uint8_t>(base), static_cast<uint8_t>(32 - __clz(static_cast<int>(most - base)))};
      }
      finite &= most != 0xff;
      bytes += static_cast<uint32_t>(bytes_of_group<kType>(header.bits));
      if (lane_of_warp() == 0) headers[group] = header;
    }
    if (lane_of_warp() == 0) {
      shared.bytes[warp_of_block()] = bytes;
      if (!finite) tell_nonfinite(job.of.verdict);
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (unsigned w = 1; w < kWarps; ++w) bytes += shared.bytes[w];
    job.ends[run] = bytes / kPackedUnit;
  }
};

// Writes the ends of runs, and the frame: one block of threads.
template <PackedType kType>
struct WriteEnds {
  using Job = EncodeJob;
  struct Shared {
    uint32_t sums[kWarps];
  };

  static __device__ void run(const Job& job, uint32_t /*block*/) {
    GRADTUNE_SHARED(Shared, shared);
    const PackedLayout& layout = job.layout;
    const uint32_t end = add_up_lengths(job.ends, layout.runs, shared.sums);
    if (threadIdx.x != 0) return;
    const Gap ends{static_cast<int64_t>(sizeof(PayloadHeader)) + layout.runs * 4, layout.headers_at};
    const Gap headers{layout.headers_at + layout.groups * static_cast<int64_t>(sizeof(GroupHeader)), layout.groups_at};
    write_frame(job.of, job.payload, packed_id(kType), ends, headers, layout.groups_at + int64_t{end} * kPackedUnit);
  }
};

// The begin of each group of a run, in bytes behind its first one.
struct Offsets {
  uint32_t sums[kWarps];
  uint32_t at[kGroups];
  GroupHeader headers[kGroups];
};

// Returns the bytes of all groups of the run; all threads call it. `valid` is false where a header is none.
template <PackedType kType>
__device__ __forceinline__ int64_t find_offsets(const GroupHeader* headers, int64_t groups, int64_t run,
                                                Offsets& offsets, bool& valid) {
  const int64_t group = run * kGroups + threadIdx.x;
  GroupHeader header{0, GroupHeader::kNoGroup};
  if (threadIdx.x < kGroups && group < groups) header = headers[group];
  const bool good = header.bits <= 8 || header.bits == GroupHeader::kNoGroup;
  const auto bytes = good ? static_cast<uint32_t>(bytes_of_group<kType>(header.bits)) : 0;
  uint32_t total;
  const uint32_t at = exclusive_sum_of_block(bytes, offsets.sums, total);
  if (threadIdx.x < kGroups) {
    offsets.at[threadIdx.x] = at;
    offsets.headers[threadIdx.x] = header;
  }
  valid = __syncthreads_or(good ? 0 : 1) == 0;
  return total;
}

template <PackedType kType>
struct WriteGroups {
  using Job = EncodeJob;

  static __device__ void run(const Job& job, uint32_t run) {
    GRADTUNE_SHARED(Offsets, offsets);
    const auto* const headers = reinterpret_cast<const GroupHeader*>(job.payload + job.layout.headers_at);
    bool valid;
    (void)find_offsets<kType>(headers, job.layout.groups, run, offsets, valid);
    const int64_t begin = begin_of(job.ends, run, kPackedUnit);
    const unsigned lane = lane_of_warp();
#pragma unroll 4
    for (int g = 0; g < kGroupsOfWarp; ++g) {
      const auto group = static_cast<int>(warp_of_block()) * kGroupsOfWarp + g;
      const GroupHeader header = offsets.headers[group];
      if (header.bits == GroupHeader::kNoGroup) continue;
      const int64_t i = (int64_t{run} * kGroups + group) * kGroupElements + lane;
      auto* const planes = reinterpret_cast<uint8_t*>(job.payload + job.layout.groups_at + begin + offsets.at[group]);
      uint8_t* const high = planes + 8 * header.bits;
      uint32_t bits[2], codes[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float sent;
        bits[h] = sent_bits<kType>(job.of, i + 32 * h, sent);
        const uint32_t exponent = bits[h] >> 23 & 0xff;
        codes[h] = exponent == 0 ? 0 : exponent - header.base;
        high[lane + 32 * h] = static_cast<uint8_t>((bits[h] >> 24 & 0x80) | (bits[h] >> 16 & 0x7f));
        if (kType == PackedType::f32) {
          reinterpret_cast<uint16_t*>(high + kGroupElements)[lane + 32 * h] = static_cast<uint16_t>(bits[h]);
        }
      }
      for (unsigned bit = 0; bit < header.bits; ++bit) {
        const uint32_t low_word = __ballot_sync(kAllLanes, static_cast<int>(codes[0] >> bit & 1));
        const uint32_t high_word = __ballot_sync(kAllLanes, static_cast<int>(codes[1] >> bit & 1));
        if (lane < 2) reinterpret_cast<uint32_t*>(planes)[2 * bit + lane] = lane == 0 ? low_word : high_word;
      }
    }
  }
};

// --- Decode.
struct DecodeJob {
  Sums sums;
  Frames frames;
  PackedLayout layout;
};

template <PackedType kType>
struct AddGroups {
  using Job = DecodeJob;

  static __device__ void run(const Job& job, uint32_t run) {
    GRADTUNE_SHARED(Offsets, offsets);
    const Sums& sums = job.sums;
    const PackedLayout& layout = job.layout;
    if (run == 0) check_payloads(job);
    if (run >= layout.runs) return;
    const int64_t first = (int64_t{run} * kGroups + warp_of_block() * kGroupsOfWarp) * kGroupElements + lane_of_warp();
    float sum[kGroupsOfWarp][2];
#pragma unroll
    for (int g = 0; g < kGroupsOfWarp; ++g) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int64_t i = first + g * kGroupElements + 32 * h;
        sum[g][h] = sums.accumulate && i < sums.n ? sums.out[i] : 0.0F;
      }
    }
    for (uint32_t p = 0; p < sums.count; ++p) {
      const std::byte* const payload = sums.payloads[p];
      const auto* const ends = reinterpret_cast<const uint32_t*>(payload + sizeof(PayloadHeader));
      const int64_t from = begin_of(ends, run, kPackedUnit), to = int64_t{ends[run]} * kPackedUnit;
      bool valid;
      const int64_t bytes = find_offsets<kType>(reinterpret_cast<const GroupHeader*>(payload + layout.headers_at),
                                                layout.groups, run, offsets, valid);
      // A sum of valid lengths that is right for each run up to the last one ends where the payload does.
      if (!valid || bytes != to - from || layout.groups_at + to > layout.bytes) {
        if (threadIdx.x == 0) tell_rejected(sums.verdict, sums.first + p);
      } else {
        const bool is_first = p == 0 && !sums.accumulate;
        const auto* const groups = reinterpret_cast<const uint8_t*>(payload + layout.groups_at + from);
#pragma unroll
        for (int g = 0; g < kGroupsOfWarp; ++g) {
          const auto group = static_cast<int>(warp_of_block()) * kGroupsOfWarp + g;
          add_group(offsets.headers[group], groups + offsets.at[group], is_first, sum[g]);
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (int g = 0; g < kGroupsOfWarp; ++g) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int64_t i = first + g * kGroupElements + 32 * h;
        if (i < sums.n) __stcs(sums.out + i, sum[g][h]);
      }
    }
  }

 private:
  static __device__ void check_payloads(const Job& job) {
    check_frames(job.frames, job.sums);
    check_used(job.sums, sizeof(PayloadHeader), job.layout.runs, job.layout.groups_at, kPackedUnit);
  }

  static __device__ __forceinline__ void add_group(const GroupHeader header, const uint8_t* planes, bool is_first,
                                                   float (&sum)[2]) {
    if (header.bits == GroupHeader::kNoGroup) return;  // of the first payload, sums are zeros
    const unsigned lane = lane_of_warp();
    const uint8_t* const high = planes + 8 * header.bits;
#pragma unroll
    for (unsigned h = 0; h < 2; ++h) {
      uint32_t code = 0;
      for (unsigned bit = 0; bit < header.bits; ++bit) {
        code |= (reinterpret_cast<const uint32_t*>(planes)[2 * bit + h] >> lane & 1) << bit;
      }
      const uint32_t exponent = code == 0 ? 0 : (code + header.base) & 0xff;
      const uint32_t upper = high[lane + 32 * h];
      uint32_t rest = 0;
      if (kType == PackedType::f32) rest = reinterpret_cast<const uint16_t*>(high + kGroupElements)[lane + 32 * h];
      const float value = __uint_as_float((upper & 0x80) << 24 | exponent << 23 | (upper & 0x7f) << 16 | rest);
      sum[h] = is_first ? value : sum[h] + value;
    }
  }
};

template <PackedType kType>
class Packed final : public DeviceCompressor {
 public:
  using DeviceCompressor::DeviceCompressor;

 private:
  void enqueue_encode(std::span<const Encode> jobs, Queue& queue) const override {
    const auto launch = [&]<class Kernel>(const Kernel&, const auto& blocks) {
      Launches<Kernel> launches(queue);
      for (const Encode& job : jobs) {
        const EncodeJob made{.of = elements_of(job),
                             .payload = job.payload.data(),
                             .ends = reinterpret_cast<uint32_t*>(job.payload.data() + sizeof(PayloadHeader)),
                             .layout = packed_layout(kType, static_cast<int64_t>(job.gradient.size()))};
        launches.add(made, blocks(made));
      }
      launches.finish();
    };
    const auto runs = [](const EncodeJob& job) { return job.layout.runs; };
    launch(WriteHeaders<kType>(), runs);
    launch(WriteEnds<kType>(), [](const EncodeJob&) { return int64_t{1}; });
    launch(WriteGroups<kType>(), runs);
  }

  void enqueue_decode(std::span<const Decode> jobs, Queue& queue) const override {
    decode_by<AddGroups<kType>>(
        jobs, queue,
        [](const Decode&, const Sums& sums) -> DecodeJob {
          const PackedLayout layout = packed_layout(kType, sums.n);
          return {.sums = sums,
                  .frames = {packed_id(kType), static_cast<uint32_t>(sums.n),
                             static_cast<uint32_t>(layout.groups_at / kUsedUnit),
                             static_cast<uint32_t>(layout.bytes / kUsedUnit)},
                  .layout = layout};
        },
        [](const Decode& job) {
          return std::max<int64_t>(1, packed_layout(kType, static_cast<int64_t>(job.out.size())).runs);
        });
  }
};

}  // namespace

std::unique_ptr<Compressor> packed(std::unique_ptr<Compressor> host) {
  return std::make_unique<Packed<PackedType::f32>>(std::move(host));
}
std::unique_ptr<Compressor> bf16packed(std::unique_ptr<Compressor> host) {
  return std::make_unique<Packed<PackedType::bf16>>(std::move(host));
}

}  // namespace gradtune::compress::cuda
