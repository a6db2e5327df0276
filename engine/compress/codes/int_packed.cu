// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// `int4packed` and `int3packed` on a device. A block of threads has a run of at most 8192 elements: 32 to a thread,
// which are read once, and then a group of 64, as words (rice.cuh), to each of half of the threads. The place of a
// run's stream is known when all earlier runs have theirs, so streams are made in scratch, and copied. A decoder must
// read the groups of a part one after the other to find their begins; a lane of a warp for each part does that. Then
// all threads read groups, and add up.
#include "engine/compress/codes/int_packed_layout.h"

#include "engine/compress/codes/codes.cuh"
#include "engine/compress/codes/rice.cuh"
#include "engine/compress/cuda/device_compressor.h"
#include "engine/compress/cuda/runs.cuh"

namespace gradtune::compress::cuda {
namespace {

static_assert(rice_parts(kIntPackedRun) <= 32, "a warp has a lane for each part");
constexpr int kRun = kIntPackedRun, kGroups = kRun / kRiceGroup;
constexpr int kEights = kRun / (kThreads * 8);  // of a thread: so many elements that are neighbours
constexpr int kApart = kThreads * 8;
constexpr uint32_t kUnitBits = 8 * kIntPackedUnit;

// The words of a run's stream in shared memory, with those that are read behind its end.
template <int kBits>
constexpr int kStreamWords = (section_bytes(most_rice_bytes(kRun, kBits)) + kRiceSlack) / 4;

// The blocks of a run.
struct Blocks {
  int64_t of_run;
  uint32_t groups;  // of each
  uint32_t unused;

  __device__ __forceinline__ int64_t at(uint32_t run, uint32_t group) const { return run * of_run + group / groups; }
};

Blocks blocks_of(const IntPackedLayout& layout) {
  return {layout.run / layout.block, static_cast<uint32_t>(layout.block / kRiceGroup), 0};
}

// Copies every `step`th unit from the first on. Several are requested before one is used.
template <class Store>
__device__ __forceinline__ void copy_units(const uint2* from, uint32_t units, uint32_t first, uint32_t step,
                                           const Store& store) {
  constexpr int kAsked = 4;
  for (uint32_t i = first; i < units; i += kAsked * step) {
    uint2 some[kAsked] = {};
#pragma unroll
    for (int k = 0; k < kAsked; ++k) {
      if (i + k * step < units) some[k] = __ldcs(from + i + k * step);
    }
#pragma unroll
    for (int k = 0; k < kAsked; ++k) {
      if (i + k * step < units) store(i + k * step, some[k]);
    }
  }
}

struct EncodeJob {
  Elements of;
  std::byte* payload;
  std::byte* streams;  // of runs, kept apart
  int64_t stream_bytes;
  uint32_t* ends;  // of runs: first their lengths, then where they end, in units
  IntPackedLayout layout;
  Blocks blocks;
  uint64_t id;
};

// Units, errors, and streams of runs with their lengths.
template <int kBits>
struct WriteStreams {
  using Job = EncodeJob;
  struct Shared {
    uint32_t largest[kGroups];
    Unit units[kGroups];  // of each group
    uint32_t sums[kWarps];
    uint64_t planes[kBits][kGroups];
    alignas(16) uint32_t stream[kStreamWords<kBits>];
  };

  static __device__ void run(const Job& job, uint32_t run) {
    GRADTUNE_SHARED(Shared, shared);
    const int64_t begin = run * job.layout.run;
    Elements of = job.of;
    if (of.n > begin + job.layout.run) of.n = begin + job.layout.run;
    const auto n = static_cast<uint32_t>(of.n - begin);
    const int64_t first = begin + int64_t{threadIdx.x} * 8;
    const bool is_whole = of.aligned && n == kRun;
    Quad p[2][kEights];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (is_whole) {
        load_p<true>(of, first + 4 * h, kApart, p[h]);
      } else {
        load_p<false>(of, first + 4 * h, kApart, p[h]);
      }
    }
    find_largest(p, shared.largest);
    for (unsigned i = threadIdx.x; i < kStreamWords<kBits>; i += kThreads) shared.stream[i] = 0;
    __syncthreads();
    if (threadIdx.x < kGroups) make_units(job, run, n, shared);
    __syncthreads();
    write_codes(of, p, shared);
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (is_whole) {
          keep<true>(of, p[h][e], first + e * kApart + 4 * h);
        } else {
          keep<false>(of, p[h][e], first + e * kApart + 4 * h);
        }
      }
    }
    __syncthreads();
    const uint32_t units = write_groups(n, shared);
    if (threadIdx.x == 0) job.ends[run] = units;
    auto* const to = reinterpret_cast<uint4*>(job.streams + run * job.stream_bytes);
    for (unsigned i = threadIdx.x; i * 2 < units; i += kThreads) {
      __stcs(to + i, reinterpret_cast<const uint4*>(shared.stream)[i]);
    }
  }

 private:
  // The largest magnitude of each group, as its bits. Eight neighbouring lanes have one.
  static __device__ __forceinline__ void find_largest(const Quad (&p)[2][kEights], uint32_t* largest_of) {
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      uint32_t largest = 0;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int j = 0; j < 4; ++j) largest = std::max(largest, abs_bits(p[h][e].at[j]));
      }
#pragma unroll
      for (int apart = 1; apart < 8; apart *= 2) {
        largest = std::max(largest, __shfl_xor_sync(kAllLanes, largest, apart));
      }
      if (threadIdx.x % 8 == 0) largest_of[(e * kThreads + threadIdx.x) / 8] = largest;
    }
  }

  // By a thread for each group.
  static __device__ __forceinline__ void make_units(const Job& job, uint32_t run, uint32_t n, Shared& shared) {
    const uint32_t group = threadIdx.x, first = group / job.blocks.groups * job.blocks.groups;
    uint32_t largest = 0;
    for (uint32_t g = first; g < first + job.blocks.groups && g < kGroups; ++g) {
      largest = std::max(largest, shared.largest[g]);
    }
    const Unit unit = make_unit(Integers<false>(kBits), __uint_as_float(largest) * job.of.scale, /*is_bf16=*/true);
    shared.units[group] = unit;
    if (group != first || group * kRiceGroup >= n) return;
    auto* const units = reinterpret_cast<uint16_t*>(job.payload + job.layout.scales.scales_at);
    units[job.blocks.at(run, group)] = static_cast<uint16_t>(__float_as_uint(unit.unit) >> 16);
    if (!unit.good) tell_nonfinite(job.of.verdict);
  }

  // Codes, as planes; elements become their errors.
  static __device__ __forceinline__ void write_codes(const Elements& of, Quad (&p)[2][kEights], Shared& shared) {
    const Integers<false> format(kBits);
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      const unsigned place = e * kThreads + threadIdx.x;
      const Unit unit = shared.units[place / 8];
      uint32_t codes[2] = {};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int j = 0; j < 4; ++j) codes[h] |= encode_element(of, format, unit, 0, p[h][e].at[j]) << 8 * j;
      }
#pragma unroll
      for (int bit = 0; bit < kBits; ++bit) {
        const uint32_t low = gather_bytes(codes[0] >> bit), high = gather_bytes(codes[1] >> bit);
        reinterpret_cast<uint8_t*>(shared.planes[bit])[place] = static_cast<uint8_t>(low | high << 4);
      }
    }
  }

  // The lowest bits of four bytes, side by side.
  static __device__ __forceinline__ uint32_t gather_bytes(uint32_t four) {
    return (four & 0x01010101) * 0x01020408 >> 24;
  }

  // Returns the stream's units.
  static __device__ __forceinline__ uint32_t write_groups(uint32_t n, Shared& shared) {
    const uint32_t begin = threadIdx.x * kRiceGroup;
    const uint32_t elements = begin >= n ? 0 : n - begin < kRiceGroup ? n - begin : kRiceGroup;
    RiceGroup<kBits> group(shared.planes, threadIdx.x % kGroups, elements);
    const auto table = static_cast<uint32_t>(rice_table_bits(n));
    uint32_t total;
    const uint32_t at = exclusive_sum_of_block(elements > 0 ? group.bits() : 0, shared.sums, total);
    if (elements > 0) {
      const uint32_t part = begin / kRicePart;
      if (part > 0 && begin % kRicePart == 0) {
        put_bits(shared.stream, (part - 1) * kRiceBeginBits, at, kRiceBeginBits);
      }
      group.write(shared.stream, table + at);
    }
    __syncthreads();
    return (table + total + kUnitBits - 1) / kUnitBits;
  }
};

// Writes the ends of streams, and the frame: one block of threads.
struct WriteEnds {
  using Job = EncodeJob;
  struct Shared {
    uint32_t sums[kWarps];
  };

  static __device__ void run(const Job& job, uint32_t /*block*/) {
    GRADTUNE_SHARED(Shared, shared);
    const IntPackedLayout& layout = job.layout;
    const uint32_t end = add_up_lengths(job.ends, layout.runs, shared.sums);
    if (threadIdx.x != 0) return;
    const Gap units{layout.scales.scales_at + layout.scales.scales * layout.scales.scale_bytes, layout.ends_at};
    const Gap ends{layout.ends_at + layout.runs * 4, layout.streams_at};
    write_frame(job.of, job.payload, static_cast<uint32_t>(job.id), units, ends,
                layout.streams_at + int64_t{end} * kIntPackedUnit);
  }
};

struct CopyStreams {
  using Job = EncodeJob;

  static __device__ void run(const Job& job, uint32_t run) {
    const int64_t begin = begin_of(job.ends, run, kIntPackedUnit), end = int64_t{job.ends[run]} * kIntPackedUnit;
    const auto* const from = reinterpret_cast<const uint2*>(job.streams + run * job.stream_bytes);
    auto* const to = reinterpret_cast<uint2*>(job.payload + job.layout.streams_at + begin);
    copy_units(from, static_cast<uint32_t>((end - begin) / kIntPackedUnit), threadIdx.x, kThreads,
               [&](uint32_t i, const uint2& unit) { __stcs(to + i, unit); });
  }
};

// --- Decode.
struct DecodeJob {
  Sums sums;
  Frames frames;
  IntPackedLayout layout;
  Blocks blocks;
};

template <int kBits>
struct AddStreams {
  using Job = DecodeJob;
  static constexpr uint32_t kAtOnce = kWarps;                // payloads, whose streams a warp each reads
  static constexpr uint32_t kTogether = kThreads / kGroups;  // of them, whose groups a thread each reads
  static constexpr uint32_t kBad = ~0U;
  struct Shared {
    alignas(16) uint32_t streams[kAtOnce][kStreamWords<kBits>];
    uint64_t planes[kTogether][kBits][kGroups];
    uint32_t begins[kAtOnce][kGroups];
    uint32_t bits[kAtOnce];  // of the stream, or kBad
  };

  static __device__ void run(const Job& job, uint32_t run) {
    GRADTUNE_SHARED(Shared, shared);
    const Sums& sums = job.sums;
    const IntPackedLayout& layout = job.layout;
    if (run == 0) {
      check_frames(job.frames, sums);
      check_used(sums, layout.ends_at, layout.runs, layout.streams_at, kIntPackedUnit);
    }
    if (run >= layout.runs) return;
    const int64_t begin = run * layout.run, end = sums.n < begin + layout.run ? sums.n : begin + layout.run;
    const auto n = static_cast<uint32_t>(end - begin);
    const int64_t first = begin + int64_t{threadIdx.x} * 8;
    Quad sum[kEights][2] = {};
    for_quads(sums, first, end, [&](int e, int h, int64_t i, auto is_whole) {
      if (sums.accumulate) sum[e][h] = load<is_whole()>(sums.out, i, end);
    });
    for (uint32_t p = 0; p < sums.count; p += kAtOnce) {
      const uint32_t count = sums.count - p < kAtOnce ? sums.count - p : kAtOnce;
      if (warp_of_block() < count) read_stream(job, run, p + warp_of_block(), n, warp_of_block(), shared);
      __syncthreads();
      for (uint32_t q = 0; q < count; q += kTogether) {
        const uint32_t at = q + threadIdx.x / kGroups, i = threadIdx.x % kGroups * kRiceGroup;
        if (at < count && i < n && shared.bits[at] != kBad) {
          RiceGroup<kBits>::read({shared.streams[at], shared.bits[at]}, shared.begins[at][i / kRiceGroup],
                                 n - i < kRiceGroup ? n - i : kRiceGroup, shared.planes[at - q], i / kRiceGroup);
        }
        __syncthreads();
        for (uint32_t k = 0; k < kTogether && q + k < count; ++k) {
          if (shared.bits[q + k] != kBad) add(job, run, p + q + k, shared.planes[k], n, sum);
        }
        __syncthreads();
      }
    }
    for_quads(sums, first, end,
              [&](int e, int h, int64_t i, auto is_whole) { store<is_whole()>(sum[e][h], sums.out, i, end); });
  }

 private:
  // Calls body(e, h, element, is_whole) for the quads of a thread that exist; is_whole: there are four, aligned.
  template <class Body>
  static __device__ __forceinline__ void for_quads(const Sums& sums, int64_t first, int64_t end, const Body& body) {
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int64_t i = first + e * kApart + 4 * h;
        if (sums.aligned && i + 4 <= end) {
          body(e, h, i, std::true_type());
        } else if (i < end) {
          body(e, h, i, std::false_type());
        }
      }
    }
  }

  // A payload's stream of a run, by a warp: where its groups begin.
  static __device__ __forceinline__ void read_stream(const Job& job, uint32_t run, uint32_t p, uint32_t n, uint32_t at,
                                                     Shared& shared) {
    const std::byte* const payload = job.sums.payloads[p];
    const auto* const ends = reinterpret_cast<const uint32_t*>(payload + job.layout.ends_at);
    const int64_t begin = begin_of(ends, run, kIntPackedUnit), end = int64_t{ends[run]} * kIntPackedUnit;
    bool is_good = begin <= end && end - begin <= most_rice_bytes(kRun, kBits) &&
                   job.layout.streams_at + end + kRiceSlack <= job.layout.bytes;
    if (is_good) {
      auto* const to = reinterpret_cast<uint2*>(shared.streams[at]);
      copy_units(reinterpret_cast<const uint2*>(payload + job.layout.streams_at + begin),
                 static_cast<uint32_t>((end - begin) / kIntPackedUnit), lane_of_warp(), 32,
                 [&](uint32_t i, const uint2& unit) { to[i] = unit; });
    }
    __syncwarp();
    const BitReader in{shared.streams[at], static_cast<uint32_t>(end - begin) * 8};
    is_good = is_good && RiceGroup<kBits>::find(in, n, shared.begins[at]);
    if (lane_of_warp() != 0) return;
    shared.bits[at] = is_good ? in.end : kBad;
    if (!is_good) tell_rejected(job.sums.verdict, job.sums.first + p);
  }

  // The payload's numbers, of codes that lie in planes.
  static __device__ __forceinline__ void add(const Job& job, uint32_t run, uint32_t p,
                                             const uint64_t (&planes)[kBits][kGroups], uint32_t n,
                                             Quad (&sum)[kEights][2]) {
    const Integers<false> format(kBits);
    const auto* const units = reinterpret_cast<const uint16_t*>(job.sums.payloads[p] + job.layout.scales.scales_at);
    const bool is_first = p == 0 && !job.sums.accumulate;
    bool is_bad = false;
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      const unsigned place = e * kThreads + threadIdx.x;
      if (place * 8 >= n) continue;
      const float unit = widen_bf16(__ldg(units + job.blocks.at(run, place / 8)));
      is_bad |= is_bad_scale(unit);
      uint32_t codes[2] = {};
#pragma unroll
      for (int bit = 0; bit < kBits; ++bit) {
        const uint32_t byte = reinterpret_cast<const uint8_t*>(planes[bit])[place];
        codes[0] |= scatter_to_bytes(byte & 0xf) << bit;
        codes[1] |= scatter_to_bytes(byte >> 4) << bit;
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float value = format.value(codes[h] >> 8 * j & 0xff) * unit;
          sum[e][h].at[j] = is_first ? value : sum[e][h].at[j] + value;
        }
      }
    }
    if (is_bad) tell_rejected(job.sums.verdict, job.sums.first + p);
  }

  // Four bits, as the lowest ones of bytes.
  static __device__ __forceinline__ uint32_t scatter_to_bytes(uint32_t bits) { return bits * 0x00204081 & 0x01010101; }
};

class IntPacked final : public DeviceCompressor {
 public:
  explicit IntPacked(std::unique_ptr<Compressor> host)
      : DeviceCompressor(std::move(host)), code_(int_packed_code_of(spec().name)) {}

  int64_t scratch_bytes(const core::Extent& extent) const override {
    const IntPackedLayout layout = int_packed_layout(spec(), extent.numel);
    return layout.runs * stream_bytes(layout);
  }

 private:
  static int64_t stream_bytes(const IntPackedLayout& layout) { return section_bytes(layout.most_of_run); }

  // Calls body with a type that has the number of bits.
  template <class Body>
  void with_bits(const Body& body) const {
    if (code_.bits == 3) return body(std::integral_constant<int, 3>());
    return body(std::integral_constant<int, 4>());
  }

  void enqueue_encode(std::span<const Encode> jobs, Queue& queue) const override {
    const auto launch = [&]<class Kernel>(const Kernel&, const auto& blocks) {
      Launches<Kernel> launches(queue);
      for (const Encode& job : jobs) {
        const IntPackedLayout layout = int_packed_layout(spec(), static_cast<int64_t>(job.gradient.size()));
        launches.add({.of = elements_of(job),
                      .payload = job.payload.data(),
                      .streams = job.scratch.data(),
                      .stream_bytes = stream_bytes(layout),
                      .ends = reinterpret_cast<uint32_t*>(job.payload.data() + layout.ends_at),
                      .layout = layout,
                      .blocks = blocks_of(layout),
                      .id = code_.id},
                     blocks(layout));
      }
      launches.finish();
    };
    const auto runs = [](const IntPackedLayout& layout) { return layout.runs; };
    with_bits([&](auto bits) { launch(WriteStreams<bits()>(), runs); });
    launch(WriteEnds(), [](const IntPackedLayout&) { return int64_t{1}; });
    launch(CopyStreams(), runs);
  }

  void enqueue_decode(std::span<const Decode> jobs, Queue& queue) const override {
    with_bits([&](auto bits) {
      decode_by<AddStreams<bits()>>(
          jobs, queue,
          [&](const Decode&, const Sums& sums) -> DecodeJob {
            const IntPackedLayout layout = int_packed_layout(spec(), sums.n);
            return {.sums = sums,
                    .frames = {code_.id, static_cast<uint32_t>(sums.n),
                               static_cast<uint32_t>(layout.streams_at / kUsedUnit),
                               static_cast<uint32_t>(layout.bytes / kUsedUnit)},
                    .layout = layout,
                    .blocks = blocks_of(layout)};
          },
          [&](const Decode& job) {
            return std::max<int64_t>(1, int_packed_layout(spec(), static_cast<int64_t>(job.out.size())).runs);
          });
    });
  }

  const IntPackedCode& code_;
};

}  // namespace

std::unique_ptr<Compressor> int_packed(std::unique_ptr<Compressor> host) {
  return std::make_unique<IntPacked>(std::move(host));
}

}  // namespace gradtune::compress::cuda
