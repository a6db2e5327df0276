// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The compressors that send signs, on a device. Half a warp processes a tile of at most 256 elements; each lane adds
// up every sixteenth element, as on the host. Blocks that fit a tile, and tiles of votes, are read once. Tiles of
// larger blocks, whose scale needs all tiles, are read twice, the second time from a cache.
#include "engine/compress/signs/signs.h"

#include "engine/compress/cuda/device_compressor.h"
#include "engine/compress/cuda/frames.cuh"
#include "engine/compress/cuda/norms.cuh"

namespace gradtune::compress::cuda {
namespace {

constexpr int kTile = 256, kLanes = 16;
constexpr int kEach = kTile / kLanes, kFewEach = 64 / kLanes;  // elements of a lane, of a tile and of a small block
constexpr int kHalves = kThreads / kLanes;                     // of the warps of a block

struct EncodeJob {
  Elements of;
  Frame frame;
  float* scales;
  uint8_t* bits;
  int64_t blocks, block;  // how many, and their elements
  const float* momentum;  // before, or null
  float* momentum_next;
  float decay;
  int unused;
};

// Elements of a tile that a lane has, each 16 behind the one before.
template <int kCount>
struct Strided {
  float at[kCount];
};

// Loads `count` elements from `first` on. If there is momentum, it replaces them.
template <int kCount>
__device__ __forceinline__ Strided<kCount> load_tile(const EncodeJob& job, int64_t first, int count) {
  const auto k = static_cast<int>(lane_of_warp() % kLanes);
  Strided<kCount> p;
#pragma unroll
  for (int m = 0; m < kCount; ++m)
    p.at[m] = m * kLanes + k < count ? __ldcs(job.of.gradient + first + m * kLanes + k) : 0.0F;
  if (job.of.residual != nullptr) {
    Strided<kCount> residual;
#pragma unroll
    for (int m = 0; m < kCount; ++m) {
      residual.at[m] = m * kLanes + k < count ? __ldcs(job.of.residual + first + m * kLanes + k) : 0.0F;
    }
#pragma unroll
    for (int m = 0; m < kCount; ++m) p.at[m] = m * kLanes + k < count ? p.at[m] + residual.at[m] : 0.0F;
  }
  if (job.momentum != nullptr) {
    const float grows = 1 - job.decay;
#pragma unroll
    for (int m = 0; m < kCount; ++m) {
      if (m * kLanes + k >= count) continue;
      p.at[m] = job.momentum[first + m * kLanes + k] * job.decay + p.at[m] * grows;
      job.momentum_next[first + m * kLanes + k] = p.at[m];
    }
  }
  return p;
}

// Sums of magnitudes of a tile: of its whole words of 64 elements, and of the rest. With two sides, each has its own
// sum.
struct TileSums {
  float whole[2], rest[2];
  int negatives;
};

__device__ __forceinline__ bool is_negative(float value) { return __float_as_uint(value) >> 31 != 0; }

// Writes a tile's sign bits, and adds it up. All lanes of the warp call it; lane 0 of each half has the sums.
template <bool kSides, int kCount>
__device__ __forceinline__ TileSums sum_tile(const Strided<kCount>& p, int count, uint8_t* bits) {
  const unsigned lane = lane_of_warp(), half = lane / kLanes;
  const auto k = static_cast<int>(lane % kLanes);
  const int whole = count / 64 * 64;
  TileSums sums{};
  uint32_t own = 0;  // the bits of the 16 elements that this lane writes
#pragma unroll
  for (int m = 0; m < kCount; ++m) {
    const uint32_t word = __ballot_sync(kAllLanes, is_negative(p.at[m]) ? 1 : 0) >> (16 * half) & 0xffff;
    own = m == k ? word : own;
    if (kSides) sums.negatives += __popc(word);
  }
  const auto add = [&](int m, float(&to)[2]) {
    const float magnitude = __uint_as_float(abs_bits(p.at[m]));
    const bool side = kSides && is_negative(p.at[m]);
    to[0] += side ? 0.0F : magnitude;
    if (kSides) to[1] += side ? magnitude : 0.0F;
  };
  if (__any_sync(kAllLanes, whole != count ? 1 : 0) == 0) {
#pragma unroll
    for (int m = 0; m < kCount; ++m) add(m, sums.whole);
  } else {
#pragma unroll
    for (int m = 0; m < kCount; ++m) {
      if (m * 16 < whole) {
        add(m, sums.whole);
      } else {
        add(m, sums.rest);
      }
    }
  }
  if (k * 16 < count && k < kCount) bits[k * 2] = static_cast<uint8_t>(own);
  if (k * 16 + 8 < count && k < kCount) bits[k * 2 + 1] = static_cast<uint8_t>(own >> 8);
#pragma unroll
  for (int side = 0; side < (kSides ? 2 : 1); ++side) {
    sums.whole[side] = sum_of_sixteen(sums.whole[side], kLanes);
    sums.rest[side] = sum_of_sixteen(sums.rest[side], kLanes);
  }
  return sums;
}

// The sums of a block.
struct BlockSums {
  double first, negative;
  int64_t negatives;
};

__device__ __forceinline__ float finite_or_zero(double value) {
  const auto rounded = static_cast<float>(value);
  return is_finite(rounded) ? rounded : 0.0F;
}

// The values of the signs of a block.
struct Levels {
  float positive, negative;
};

// Computes the values from the sums of a block of n elements.
template <SignScales kKind>
__device__ __forceinline__ Levels levels_of(const EncodeJob& job, const BlockSums& sums, int64_t n) {
  const double scale = job.of.scale;
  if constexpr (kKind == SignScales::means) {
    const int64_t positives = n - sums.negatives;
    Levels levels{0, 0};
    if (positives != 0) levels.positive = finite_or_zero(sums.first * (scale / static_cast<double>(positives)));
    if (sums.negatives != 0) {
      levels.negative = finite_or_zero(sums.negative * (scale / static_cast<double>(sums.negatives)));
    }
    return levels;
  } else if constexpr (kKind == SignScales::mean) {
    const float level = finite_or_zero(sums.first * (scale / static_cast<double>(n)));
    return {level, level};
  } else {
    const float level = __uint_as_float(__float_as_uint(job.of.scale) & 0xfffff000);
    return {level, level};
  }
}

template <SignScales kKind>
__device__ __forceinline__ void write_scales(const EncodeJob& job, const Levels& levels, int64_t block) {
  if constexpr (kKind == SignScales::means) {
    job.scales[2 * block] = levels.positive;
    job.scales[2 * block + 1] = levels.negative;
  } else {
    job.scales[block] = levels.positive;
  }
}

// The sum of a block, or of a tile of votes, bounds each of its elements, and so the sent values and the errors.
__device__ __forceinline__ void look_at(const EncodeJob& job, const BlockSums& sums) {
  const double total = sums.first + sums.negative;
  const auto bound = static_cast<float>(total);
  if (!(is_finite(total) && is_finite(bound * job.of.scale) && is_finite(bound * job.of.unsent_factor))) {
    tell_nonfinite(job.of.verdict);
  }
}

template <int kCount>
__device__ __forceinline__ void keep_tile(const EncodeJob& job, const Strided<kCount>& p, const Levels& levels,
                                          int64_t first, int count) {
  if (job.of.next == nullptr) return;
  const auto k = static_cast<int>(lane_of_warp() % kLanes);
  const float positive = job.of.error_scale * levels.positive, negative = job.of.error_scale * -levels.negative;
#pragma unroll
  for (int m = 0; m < kCount; ++m) {
    if (m * kLanes + k >= count) continue;
    float* const to = job.of.next + first + m * kLanes + k;
    const float missed = p.at[m] * job.of.unsent_factor - (is_negative(p.at[m]) ? negative : positive);
    __stcs(to, job.of.add ? *to + missed : missed);
  }
}

// Half a warp for each tile. A tile is a block, or a part of a block of votes, whose scale does not depend on it.
template <SignScales kKind, int kCount>
struct EncodeTiles {
  using Job = EncodeJob;

  static __host__ __device__ int64_t tile_of(int64_t block) { return kKind == SignScales::vote ? kTile : block; }

  static __device__ void run(const Job& job, uint32_t block) {
    if (block == 0 && threadIdx.x == 0) write_frame(job.frame, job.of.verdict);
    const int64_t size = tile_of(job.block), tile = int64_t{block} * kHalves + threadIdx.x / kLanes;
    const int64_t first = tile * size, left = job.of.n - first;
    const auto count = static_cast<int>(left < 0 ? 0 : left < size ? left : size);
    const Strided<kCount> p = load_tile<kCount>(job, first, count);
    const TileSums tiles = sum_tile<kKind == SignScales::means>(p, count, job.bits + first / 8);
    BlockSums sums{double{tiles.whole[0]} + double{tiles.rest[0]}, 0, tiles.negatives};
    if (kKind == SignScales::means) sums.negative = double{tiles.whole[1]} + double{tiles.rest[1]};
    Levels levels{0, 0};
    if (count > 0 && lane_of_warp() % kLanes == 0) {
      levels = levels_of<kKind>(job, sums, count);
      if (first % job.block == 0) write_scales<kKind>(job, levels, first / job.block);
      look_at(job, sums);
    }
    levels.positive = __shfl_sync(kAllLanes, levels.positive, 0, kLanes);
    levels.negative = __shfl_sync(kAllLanes, levels.negative, 0, kLanes);
    keep_tile(job, p, levels, first, count);
  }
};

// A block of threads for each block that is larger than a tile.
template <SignScales kKind>
struct EncodeBlocks {
  using Job = EncodeJob;
  static constexpr bool kSides = kKind == SignScales::means;
  static constexpr int kMostTiles = 65536 / kTile + 1;
  static constexpr unsigned kLeastBlocks = 3;  // otherwise the compiler spills registers to fit four
  struct Shared {
    float whole[2][kMostTiles], rest[2];
    uint32_t negatives;
    Levels levels;
  };

  static __device__ void run(const Job& job, uint32_t block) {
    GRADTUNE_SHARED(Shared, shared);
    if (block == 0 && threadIdx.x == 0) write_frame(job.frame, job.of.verdict);
    if (block >= job.blocks) return;
    if (threadIdx.x == 0) shared.negatives = 0;
    __syncthreads();
    const int64_t first = block * job.block, left = job.of.n - first, n = left < job.block ? left : job.block;
    const auto tiles = static_cast<int>((n + kTile - 1) / kTile);
    const auto count_of = [&](int tile) {
      const int64_t behind = n - int64_t{tile} * kTile;
      return static_cast<int>(behind < 0 ? 0 : behind < kTile ? behind : kTile);
    };
    const auto half = static_cast<int>(threadIdx.x / kLanes);
    const bool is_first_lane = threadIdx.x % kLanes == 0;
    for (int round = 0; round < tiles; round += kHalves) {
      const int tile = round + half;
      const int64_t at = first + int64_t{tile} * kTile;
      const Strided<kEach> p = load_tile<kEach>(job, at, count_of(tile));
      const TileSums sums = sum_tile<kSides>(p, count_of(tile), job.bits + at / 8);
      if (tile >= tiles || !is_first_lane) continue;
      atomicAdd(&shared.negatives, static_cast<uint32_t>(sums.negatives));
      for (int side = 0; side < (kSides ? 2 : 1); ++side) {
        shared.whole[side][tile] = sums.whole[side];
        if (tile == tiles - 1) shared.rest[side] = sums.rest[side];
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      BlockSums sums{0, 0, shared.negatives};
      for (int tile = 0; tile < tiles; ++tile) sums.first += double{shared.whole[0][tile]};
      sums.first += double{shared.rest[0]};
      for (int tile = 0; kSides && tile < tiles; ++tile) sums.negative += double{shared.whole[1][tile]};
      if (kSides) sums.negative += double{shared.rest[1]};
      shared.levels = levels_of<kKind>(job, sums, n);
      write_scales<kKind>(job, shared.levels, block);
      look_at(job, sums);
    }
    __syncthreads();
    if (job.of.next == nullptr) return;
    for (int tile = half; tile < tiles; tile += kHalves) {
      const int64_t at = first + int64_t{tile} * kTile;
      keep_tile(job, load_tile<kEach>(job, at, count_of(tile)), shared.levels, at, count_of(tile));
    }
  }
};

// --- Decode: a thread has eight elements, whose signs are a byte of each payload. Four payloads are added up before
// their sum is added to the others, as on the host.
struct DecodeJob {
  Sums sums;
  Frames frames;
  int64_t scales_at, bits_at;
  uint32_t block, scales;  // elements, and their scales
};

constexpr uint32_t kTogether = 4;

struct DecodeSigns {
  using Job = DecodeJob;

  static __device__ void run(const Job& job, uint32_t block) {
    if (block == 0) check_frames(job.frames, job.sums);
    const int64_t i = (int64_t{block} * kThreads + threadIdx.x) * 8;
    if (i >= job.sums.n) return;
    if (job.sums.aligned && i + 8 <= job.sums.n) {
      decode_eight<true>(job, i);
    } else {
      decode_eight<false>(job, i);
    }
  }

  // The values of these elements' signs in a payload.
  struct Part {
    float positive, negative;
    uint32_t bits;

    __device__ __forceinline__ float value(int j) const {
      return (bits >> j & 1) != 0 ? __uint_as_float(__float_as_uint(negative) ^ 0x80000000) : positive;
    }
  };

  template <bool kWhole>
  static __device__ __forceinline__ void decode_eight(const Job& job, int64_t i) {
    const Sums& sums = job.sums;
    const uint32_t scale = static_cast<uint32_t>(i) / job.block * job.scales;
    Quad sum[2] = {};
    if (sums.accumulate) {
      sum[0] = load<kWhole>(sums.out, i, sums.n);
      sum[1] = load<kWhole>(sums.out, i + 4, sums.n);
    }
    for (uint32_t first = 0; first < sums.count; first += kTogether) {
      Part parts[kTogether];
#pragma unroll
      for (uint32_t k = 0; k < kTogether; ++k) {
        if (first + k >= sums.count) continue;
        const std::byte* const payload = sums.payloads[first + k];
        const float* const scales = reinterpret_cast<const float*>(payload + job.scales_at) + scale;
        parts[k] = {__ldg(scales), __ldg(scales + job.scales - 1),
                    __ldcs(reinterpret_cast<const uint8_t*>(payload + job.bits_at) + i / 8)};
      }
      float together[8] = {};
#pragma unroll
      for (uint32_t k = 0; k < kTogether; ++k) {
        if (first + k >= sums.count) continue;
        if (is_bad_scale(parts[k].positive) || is_bad_scale(parts[k].negative)) {
          tell_rejected(sums.verdict, sums.first + first + k);
        }
#pragma unroll
        for (int j = 0; j < 8; ++j) together[j] = k == 0 ? parts[k].value(j) : together[j] + parts[k].value(j);
      }
      const bool stored = first > 0 || sums.accumulate;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        float& to = sum[j / 4].at[j % 4];
        to = stored ? to + together[j] : together[j];
      }
    }
    store<kWhole>(sum[0], sums.out, i, sums.n);
    store<kWhole>(sum[1], sums.out, i + 4, sums.n);
  }
};

class Signs final : public DeviceCompressor {
 public:
  explicit Signs(std::unique_ptr<Compressor> host) : DeviceCompressor(std::move(host)), code_(sign_code_of(spec())) {}

 private:
  void enqueue_encode(std::span<const Encode> jobs, Queue& queue) const override {
    const bool fits = sign_layout(spec(), 0).block <= kTile;
    switch (code_.scales) {
      case SignScales::mean:
        return fits ? encode_tiles<SignScales::mean>(jobs, queue) : encode_blocks<SignScales::mean>(jobs, queue);
      case SignScales::means:
        return fits ? encode_tiles<SignScales::means>(jobs, queue) : encode_blocks<SignScales::means>(jobs, queue);
      case SignScales::vote: return encode_tiles<SignScales::vote>(jobs, queue);
    }
  }

  template <SignScales kKind>
  void encode_tiles(std::span<const Encode> jobs, Queue& queue) const {
    const bool few = sign_layout(spec(), 0).block <= kFewEach * kLanes;
    few ? encode_tiles_of<kKind, kFewEach>(jobs, queue) : encode_tiles_of<kKind, kEach>(jobs, queue);
  }
  template <SignScales kKind, int kCount>
  void encode_tiles_of(std::span<const Encode> jobs, Queue& queue) const {
    using Kernel = EncodeTiles<kKind, kCount>;
    encode_by<Kernel>(jobs, queue,
                      [](const EncodeJob& job) { return blocks_of(job.of.n, Kernel::tile_of(job.block) * kHalves); });
  }
  template <SignScales kKind>
  void encode_blocks(std::span<const Encode> jobs, Queue& queue) const {
    encode_by<EncodeBlocks<kKind>>(jobs, queue, [](const EncodeJob& job) { return job.blocks; });
  }

  template <class Kernel, class Blocks>
  void encode_by(std::span<const Encode> jobs, Queue& queue, const Blocks& blocks) const {
    Launches<Kernel> launches(queue);
    for (const Encode& job : jobs) {
      const BlockLayout layout = sign_layout(spec(), static_cast<int64_t>(job.gradient.size()));
      EncodeJob made{.of = elements_of(job),
                     .frame = frame_of(job, code_.id, layout),
                     .scales = reinterpret_cast<float*>(job.payload.data() + layout.scales_at),
                     .bits = reinterpret_cast<uint8_t*>(job.payload.data() + layout.codes_at),
                     .blocks = layout.blocks,
                     .block = layout.block,
                     .momentum = nullptr,
                     .momentum_next = nullptr,
                     .decay = 0,
                     .unused = 0};
      if (code_.has_momentum && job.work.state != nullptr) {
        made.momentum = reinterpret_cast<const float*>(job.work.state);
        made.momentum_next = reinterpret_cast<float*>(job.work.state_next);
        made.decay = static_cast<float>(spec().parameter);
      }
      launches.add(made, std::max<int64_t>(1, blocks(made)));
    }
    launches.finish();
  }

  void enqueue_decode(std::span<const Decode> jobs, Queue& queue) const override {
    decode_by<DecodeSigns>(
        jobs, queue,
        [&](const Decode& job, const Sums& sums) -> DecodeJob {
          const BlockLayout layout = sign_layout(spec(), static_cast<int64_t>(job.out.size()));
          const auto count = static_cast<uint32_t>(layout.blocks);
          return {.sums = sums,
                  .frames = {code_.id, static_cast<uint32_t>(sums.n), count, count},
                  .scales_at = layout.scales_at,
                  .bits_at = layout.codes_at,
                  .block = static_cast<uint32_t>(layout.block),
                  .scales = static_cast<uint32_t>(scales_per_block(code_.scales))};
        },
        [](const Decode& job) {
          return std::max<int64_t>(1, blocks_of(static_cast<int64_t>(job.out.size()), kThreads * 8));
        });
  }

  SignCode code_;
};

}  // namespace

std::unique_ptr<Compressor> signs(std::unique_ptr<Compressor> host) { return std::make_unique<Signs>(std::move(host)); }

}  // namespace gradtune::compress::cuda
