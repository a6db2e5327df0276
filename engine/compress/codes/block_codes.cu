// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// On a device: the compressors that send a scale for each block and a code of 1 to 8 bits for each element. A warp has
// a block of 128, 256 or 1024 elements in registers, or two of 64, so that they are read once. Eight warps read a block
// of another size twice, the second time from a cache.
#include "engine/compress/codes/block_codes.h"

#include <type_traits>

#include "engine/compress/codes/codes.cuh"
#include "engine/compress/cuda/device_compressor.h"
#include "engine/compress/cuda/frames.cuh"
#include "engine/compress/cuda/norms.cuh"
#include "engine/compress/cuda/random.cuh"

namespace gradtune::compress::cuda {
namespace {

using Norm = CodeFormat::Norm;

struct EncodeJob {
  Elements of;
  Frame frame;
  std::byte* units;
  uint8_t* codes;
  int64_t blocks, block;  // how many, and their elements
  Philox philox;
  int bits;
  bool has_bf16_units;
};

// A block's unit, which is written by the thread that is told to.
template <class Format>
__device__ __forceinline__ Unit unit_of(const EncodeJob& job, const Format& format, float norm, int64_t block,
                                        bool writes) {
  const Unit made = make_unit(format, norm * job.of.scale, job.has_bf16_units);
  if (writes) {
    if (job.has_bf16_units) {
      reinterpret_cast<uint16_t*>(job.units)[block] = static_cast<uint16_t>(__float_as_uint(made.unit) >> 16);
    } else {
      reinterpret_cast<float*>(job.units)[block] = made.unit;
    }
    if (!made.good) tell_nonfinite(job.of.verdict);
  }
  return made;
}

// Codes of four elements of each lane, 128 in all from `base` on, those before `end`, as bytes or in planes.
template <bool kWhole>
__device__ __forceinline__ void store_codes(const EncodeJob& job, const uint32_t (&codes)[4], int64_t base,
                                            int64_t end) {
  const unsigned lane = lane_of_warp();
  const int64_t i = base + lane * 4;
  if (job.bits == 8) {
    if constexpr (kWhole) {
      const uint32_t low = __byte_perm(codes[0], codes[1], 0x0040), high = __byte_perm(codes[2], codes[3], 0x0040);
      __stcs(reinterpret_cast<uint32_t*>(job.codes + i), __byte_perm(low, high, 0x5410));
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (i + j < end) job.codes[i + j] = static_cast<uint8_t>(codes[j]);
      }
    }
    return;
  }
  auto* const planes = reinterpret_cast<uint32_t*>(job.codes + base / 8 * job.bits);
  for (int bit = 0; bit < job.bits; ++bit) {
    uint32_t word = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) word |= (kWhole || i + j < end ? codes[j] >> bit & 1 : 0) << j;
    word <<= 4 * (lane % 8);
    word |= __shfl_xor_sync(kAllLanes, word, 1);
    word |= __shfl_xor_sync(kAllLanes, word, 2);
    word |= __shfl_xor_sync(kAllLanes, word, 4);
    const int64_t group = base + lane / 16 * 64;
    if (lane % 8 == 0 && (kWhole || group < end)) planes[lane / 16 * job.bits * 2 + bit * 2 + lane / 8 % 2] = word;
  }
}

// Encodes four elements of each lane, which become their errors.
template <bool kWhole, class Format>
__device__ __forceinline__ void encode_quad(const EncodeJob& job, const Format& format, const Unit& unit, Quad& p,
                                            int64_t base, int64_t end) {
  Bits random{};
  if (Format::kRandom) random = random_bits(job.philox, base + lane_of_warp() * 4);
  uint32_t codes[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) codes[j] = encode_element(job.of, format, unit, random.at[j], p.at[j]);
  store_codes<kWhole>(job, codes, base, end);
}

// A warp for each kQuads * 128 elements, which are a block, or two.
template <class Format, Norm kNorm, int kQuads, int kBlocks = 1>
struct EncodeByWarp {
  using Job = EncodeJob;
  static_assert(kBlocks == 1 || (kBlocks == 2 && kQuads == 1 && kNorm == Norm::largest));
  // One for blocks of 1024 elements with random rounding: two would spill registers, and one keeps memory busy.
  static constexpr unsigned kLeastBlocks = kQuads == 8 && std::is_same_v<Format, Integers<true>> ? 1 : 0;

  static __device__ void run(const Job& job, uint32_t block_of_grid) {
    if (block_of_grid == 0 && threadIdx.x == 0) write_frame(job.frame, job.of.verdict);
    const int64_t first = (int64_t{block_of_grid} * kWarps + warp_of_block()) * kQuads * 128;
    if (first >= job.of.n) return;
    if (job.of.aligned && first + kQuads * 128 <= job.of.n) {
      encode_blocks<true>(job, first);
    } else {
      encode_blocks<false>(job, first);
    }
  }

  template <bool kWhole>
  static __device__ __forceinline__ void encode_blocks(const Job& job, int64_t first) {
    constexpr unsigned kLanes = 32 / kBlocks;  // of a block
    const Format format(job.bits);
    const unsigned lane = lane_of_warp();
    const int64_t i = first + lane * 4, block = first / (kQuads * 128) * kBlocks + lane / kLanes;
    Quad p[kQuads];
    load_p<kWhole>(job.of, i, 128, p);
    float norm;
    if constexpr (kNorm == Norm::largest) {
      uint32_t largest = 0;
#pragma unroll
      for (int g = 0; g < kQuads; ++g) {
#pragma unroll
        for (int j = 0; j < 4; ++j) largest = std::max(largest, abs_bits(p[g].at[j]));
      }
      if constexpr (kBlocks == 1) {
        largest = __reduce_max_sync(kAllLanes, largest);
      } else {
#pragma unroll
        for (int apart = 1; apart < 16; apart *= 2) {
          largest = std::max(largest, __shfl_xor_sync(kAllLanes, largest, apart));
        }
      }
      norm = __uint_as_float(largest);
    } else {
      const int64_t left = job.of.n - first;
      norm = quick_norm(job.of, first, left < kQuads * 128 ? left : kQuads * 128);
    }
    const Unit unit = unit_of(job, format, norm, block, lane % kLanes == 0 && block < job.blocks);
#pragma unroll
    for (int g = 0; g < kQuads; ++g) {
      encode_quad<kWhole>(job, format, unit, p[g], first + g * 128, job.of.n);
      keep<kWhole>(job.of, p[g], i + g * 128);
    }
  }
};

// A block of threads for each block, of any number of elements.
template <class Format>
struct EncodeByBlock {
  using Job = EncodeJob;
  struct Shared {
    uint32_t largest[kWarps];
  };

  static __device__ void run(const Job& job, uint32_t block) {
    GRADTUNE_SHARED(Shared, shared);
    if (block == 0 && threadIdx.x == 0) write_frame(job.frame, job.of.verdict);
    if (block >= job.blocks) return;
    const Format format(job.bits);
    Elements of = job.of;
    const int64_t first = block * job.block, end = of.n - first < job.block ? of.n : first + job.block;
    of.n = end;
    uint32_t largest = 0;
    Quad p[1];
    for (int64_t i = first + threadIdx.x * 4; i < end; i += kThreads * 4) {
      load_quad(of, i, p);
#pragma unroll
      for (int j = 0; j < 4; ++j) largest = std::max(largest, abs_bits(p[0].at[j]));
    }
    largest = __reduce_max_sync(kAllLanes, largest);
    if (lane_of_warp() == 0) shared.largest[warp_of_block()] = largest;
    __syncthreads();
    for (unsigned w = 0; w < kWarps; ++w) largest = std::max(largest, shared.largest[w]);
    const Unit unit = unit_of(job, format, __uint_as_float(largest), block, threadIdx.x == 0);
    for (int64_t base = first + warp_of_block() * 128; base < end; base += kThreads * 4) {
      const int64_t i = base + lane_of_warp() * 4;
      load_quad(of, i, p);
      encode_quad<false>(job, format, unit, p[0], base, end);
      if (of.aligned && i + 4 <= end) {
        keep<true>(of, p[0], i);
      } else {
        keep<false>(of, p[0], i);
      }
    }
  }

 private:
  static __device__ __forceinline__ void load_quad(const Elements& of, int64_t i, Quad (&p)[1]) {
    if (of.aligned && i + 4 <= of.n) {
      load_p<true>(of, i, 4, p);
    } else {
      load_p<false>(of, i, 4, p);
    }
  }
};

// --- Decode.

struct DecodeJob {
  Sums sums;
  Frames frames;
  int64_t units_at, codes_at;
  uint32_t block;
  int bits;
  int64_t has_bf16_units;
};

__device__ __forceinline__ float load_unit(const DecodeJob& job, uint32_t p, uint32_t block) {
  const std::byte* const units = job.sums.payloads[p] + job.units_at;
  if (job.has_bf16_units == 0) return __ldg(reinterpret_cast<const float*>(units) + block);
  return widen_bf16(__ldg(reinterpret_cast<const uint16_t*>(units) + block));
}

constexpr int kQuads = 2;
constexpr int64_t kTile = kThreads * 4 * kQuads;

// Codes of 8 bits.
template <class Format>
struct DecodeBytes {
  using Job = DecodeJob;

  static __device__ void run(const Job& job, uint32_t block) {
    if (block == 0) check_frames(job.frames, job.sums);
    const int64_t tile = int64_t{block} * kTile;
    if (job.sums.aligned && tile + kTile <= job.sums.n) {
      decode_tile<true>(job, tile);
    } else {
      decode_tile<false>(job, tile);
    }
  }

  struct Part {
    float unit[kQuads];
    uint32_t codes[kQuads];
  };

  template <bool kWhole>
  static __device__ __forceinline__ void decode_tile(const Job& job, int64_t tile) {
    const Format format(8);
    const Sums& sums = job.sums;
    const int64_t first = tile + int64_t{threadIdx.x} * 4;
    uint32_t block[kQuads];
#pragma unroll
    for (int g = 0; g < kQuads; ++g) block[g] = static_cast<uint32_t>(first + g * kThreads * 4) / job.block;
    const auto part_of = [&](uint32_t p) {
      Part part;
#pragma unroll
      for (int g = 0; g < kQuads; ++g) {
        const int64_t i = first + g * kThreads * 4;
        const auto* const codes = reinterpret_cast<const uint8_t*>(sums.payloads[p] + job.codes_at) + i;
        part.unit[g] = 0;
        part.codes[g] = 0;
        if (kWhole || i < sums.n) {
          part.unit[g] = load_unit(job, p, block[g]);
        }
        if constexpr (kWhole) {
          part.codes[g] = __ldcs(reinterpret_cast<const uint32_t*>(codes));
        } else {
#pragma unroll
          for (int j = 0; j < 4; ++j) part.codes[g] |= (i + j < sums.n ? codes[j] : 0U) << 8 * j;
        }
      }
      return part;
    };
    Quad sum[kQuads] = {};
    const auto add = [&](uint32_t p, const Part& part, bool is_first) {
      bool bad = false;
#pragma unroll
      for (int g = 0; g < kQuads; ++g) {
        bad |= format.none_sends(part.codes[g]) || is_bad_scale(part.unit[g]);
        const float step = format.step(part.unit[g]);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float value = format.value(part.codes[g] >> 8 * j & 0xff) * step;
          sum[g].at[j] = is_first ? value : sum[g].at[j] + value;
        }
      }
      if (bad) tell_rejected(sums.verdict, sums.first + p);
    };
    uint32_t p = 0;
    if (sums.accumulate) {
#pragma unroll
      for (int g = 0; g < kQuads; ++g) sum[g] = load<kWhole>(sums.out, first + g * kThreads * 4, sums.n);
    } else {
      add(0, part_of(0), true);
      p = 1;
    }
    constexpr uint32_t kAtOnce = kWhole ? 4 : 1;
    for (; p + kAtOnce <= sums.count; p += kAtOnce) {
      Part parts[kAtOnce];
#pragma unroll
      for (uint32_t k = 0; k < kAtOnce; ++k) parts[k] = part_of(p + k);
#pragma unroll
      for (uint32_t k = 0; k < kAtOnce; ++k) add(p + k, parts[k], false);
    }
#pragma unroll 1
    for (; p < sums.count; ++p) add(p, part_of(p), false);
#pragma unroll
    for (int g = 0; g < kQuads; ++g) store<kWhole>(sum[g], sums.out, first + g * kThreads * 4, sums.n);
  }
};

// Integers in planes of bits. A thread has eight elements, and for each payload a byte for each bit. kTogether payloads
// are added up before the others, as on the host: two if codes have two bits.
template <int kTogether>
struct DecodePlanes {
  using Job = DecodeJob;

  static __device__ void run(const Job& job, uint32_t block) {
    if (block == 0) check_frames(job.frames, job.sums);
    const Sums& sums = job.sums;
    const int64_t i = (int64_t{block} * kThreads + threadIdx.x) * 8;
    if (i >= round_up(sums.n, kPlaneElements)) return;
    if (sums.aligned && i + 8 <= sums.n) {
      decode_eight<true>(job, i);
    } else {
      decode_eight<false>(job, i);
    }
  }

  struct Eight {
    float at[8];
  };

  template <bool kWhole>
  static __device__ __forceinline__ Eight values_of(const Job& job, const Integers<true>& format, uint32_t p,
                                                    int64_t i) {
    const Sums& sums = job.sums;
    const auto* const planes =
        reinterpret_cast<const uint8_t*>(sums.payloads[p] + job.codes_at) + i / 64 * 8 * job.bits + i % 64 / 8;
    uint32_t code[8] = {}, all = 0xff;
#pragma unroll
    for (int bit = 0; bit < 8; ++bit) {
      if (bit >= job.bits) break;
      const uint32_t byte = planes[bit * 8];
      all &= byte;
#pragma unroll
      for (int j = 0; j < 8; ++j) code[j] |= (byte >> j & 1) << bit;
    }
    // A code of nothing but ones is none; with one bit it is. The host checks whole words of codes of two bits.
    if (!kWhole && job.bits != 2) all &= i >= sums.n ? 0 : 0xffU >> (i + 8 <= sums.n ? 0 : i + 8 - sums.n);
    float unit = 0;
    if (i < sums.n) {
      unit = load_unit(job, p, static_cast<uint32_t>(i) / job.block);
    }
    if ((all != 0 && job.bits > 1) || is_bad_scale(unit)) tell_rejected(sums.verdict, sums.first + p);
    Eight values;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if constexpr (kTogether == 2) {
        values.at[j] = code[j] >= 2 ? unit : code[j] == 1 ? 0.0F : -unit;
      } else {
        values.at[j] = format.value(code[j]) * unit;
      }
    }
    return values;
  }

  template <bool kWhole>
  static __device__ __forceinline__ void decode_eight(const Job& job, int64_t i) {
    const Integers<true> format(job.bits);
    const Sums& sums = job.sums;
    Eight sum{};
    for (uint32_t p = 0; p < sums.count; p += kTogether) {
      Eight some = values_of<kWhole>(job, format, p, i);
      if (kTogether == 2 && p + 1 < sums.count) {
        const Eight other = values_of<kWhole>(job, format, p + 1, i);
#pragma unroll
        for (int j = 0; j < 8; ++j) some.at[j] += other.at[j];
      }
      if (p == 0 && sums.accumulate) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const Quad before = load<kWhole>(sums.out, i + 4 * h, sums.n);
#pragma unroll
          for (int j = 0; j < 4; ++j) sum.at[4 * h + j] = before.at[j];
        }
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) sum.at[j] = p == 0 && !sums.accumulate ? some.at[j] : sum.at[j] + some.at[j];
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const Quad quad{{sum.at[4 * h], sum.at[4 * h + 1], sum.at[4 * h + 2], sum.at[4 * h + 3]}};
      store<kWhole>(quad, sums.out, i + 4 * h, sums.n);
    }
  }
};

class BlockCodes final : public DeviceCompressor {
 public:
  explicit BlockCodes(std::unique_ptr<Compressor> host)
      : DeviceCompressor(std::move(host)), code_(block_code_of(spec())) {}

 private:
  void enqueue_encode(std::span<const Encode> jobs, Queue& queue) const override {
    using Codes = CodeFormat::Codes;
    switch (code_.format.codes) {
      case Codes::nearest: return encode_as<Integers<false>>(jobs, queue);
      case Codes::stochastic:
        if (code_.format.norm == Norm::largest) return encode_as<Integers<true>>(jobs, queue);
        return encode_by<EncodeByWarp<Integers<true>, Norm::euclidean, 1>>(jobs, queue, 128 * kWarps);
      case Codes::e4m3: return encode_as<Floats<3, 0x7e>>(jobs, queue);
      case Codes::e5m2: return encode_as<Floats<2, 0x7b>>(jobs, queue);
      case Codes::power: return encode_by<EncodeByWarp<Powers, Norm::largest, 8>>(jobs, queue, 1024 * kWarps);
    }
  }

  template <class Format>
  void encode_as(std::span<const Encode> jobs, Queue& queue) const {
    switch (code_.block) {
      case 64: return encode_by<EncodeByWarp<Format, Norm::largest, 1, 2>>(jobs, queue, 128 * kWarps);
      case 128: return encode_by<EncodeByWarp<Format, Norm::largest, 1>>(jobs, queue, 128 * kWarps);
      case 256: return encode_by<EncodeByWarp<Format, Norm::largest, 2>>(jobs, queue, 256 * kWarps);
      case 1024: return encode_by<EncodeByWarp<Format, Norm::largest, 8>>(jobs, queue, 1024 * kWarps);
      default: return encode_by<EncodeByBlock<Format>>(jobs, queue, code_.block);
    }
  }

  template <class Kernel>
  void encode_by(std::span<const Encode> jobs, Queue& queue, int64_t elements) const {
    Launches<Kernel> launches(queue);
    for (const Encode& job : jobs) {
      const BlockLayout layout = block_code_layout(code_, static_cast<int64_t>(job.gradient.size()));
      launches.add({.of = elements_of(job),
                    .frame = frame_of(job, code_.id, layout),
                    .units = job.payload.data() + layout.scales_at,
                    .codes = reinterpret_cast<uint8_t*>(job.payload.data() + layout.codes_at),
                    .blocks = layout.blocks,
                    .block = layout.block,
                    .philox = philox_of(job.work),
                    .bits = code_.format.bits,
                    .has_bf16_units = has_bf16_units()},
                   std::max<int64_t>(1, blocks_of(static_cast<int64_t>(job.gradient.size()), elements)));
    }
    launches.finish();
  }

  void enqueue_decode(std::span<const Decode> jobs, Queue& queue) const override {
    using Codes = CodeFormat::Codes;
    if (code_.format.bits < 8) {
      if (code_.format.bits == 2) return decode_as<DecodePlanes<2>>(jobs, queue, kThreads * 8);
      return decode_as<DecodePlanes<1>>(jobs, queue, kThreads * 8);
    }
    switch (code_.format.codes) {
      case Codes::nearest:
      case Codes::stochastic: return decode_as<DecodeBytes<Integers<false>>>(jobs, queue, kTile);
      case Codes::e4m3: return decode_as<DecodeBytes<Floats<3, 0x7e>>>(jobs, queue, kTile);
      case Codes::e5m2: return decode_as<DecodeBytes<Floats<2, 0x7b>>>(jobs, queue, kTile);
      case Codes::power: return decode_as<DecodeBytes<Powers>>(jobs, queue, kTile);
    }
  }

  template <class Kernel>
  void decode_as(std::span<const Decode> jobs, Queue& queue, int64_t tile) const {
    decode_by<Kernel>(
        jobs, queue,
        [&](const Decode& job, const Sums& sums) -> DecodeJob {
          const BlockLayout layout = block_code_layout(code_, static_cast<int64_t>(job.out.size()));
          const auto count = static_cast<uint32_t>(layout.blocks);
          return {.sums = sums,
                  .frames = {code_.id, static_cast<uint32_t>(sums.n), count, count},
                  .units_at = layout.scales_at,
                  .codes_at = layout.codes_at,
                  .block = static_cast<uint32_t>(layout.block),
                  .bits = code_.format.bits,
                  .has_bf16_units = has_bf16_units() ? 1 : 0};
        },
        [&](const Decode& job) { return std::max<int64_t>(1, blocks_of(static_cast<int64_t>(job.out.size()), tile)); });
  }

  bool has_bf16_units() const { return code_.format.unit == CodeFormat::Unit::bf16; }

  BlockCode code_;
};

}  // namespace

std::unique_ptr<Compressor> block_codes(std::unique_ptr<Compressor> host) {
  return std::make_unique<BlockCodes>(std::move(host));
}

}  // namespace gradtune::compress::cuda
