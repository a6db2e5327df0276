// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// `thc` on a device. A warp holds a block of 1024 elements in registers, 32 to a lane, and rotates it there. Sums and
// differences of elements that are 1 and 2 apart are within a lane, those 4 to 64 apart take two lanes, and those 128
// to 512 apart are within a lane again. They are computed one after the other, as on the host. Each round reads its
// elements once.
#include <cfloat>

#include "engine/compress/cuda/device_compressor.h"
#include "engine/compress/cuda/frames.cuh"
#include "engine/compress/cuda/norms.cuh"
#include "engine/compress/cuda/random.cuh"
#include "engine/compress/thc/thc_kernels.h"

namespace gradtune::compress::cuda {
namespace {

constexpr int kQuads = kRotated / 128;  // of a lane
constexpr float kNorm = 1.0F / 32;      // applied before the sums, so that they do not overflow

int64_t block_count(int64_t n) { return blocks_of(n, kRotated); }

// --- First round: norms.
struct WriteNorms {
  struct Job {
    Elements of;
    float* norms;
    int64_t blocks;
  };

  static __device__ void run(const Job& job, uint32_t block_of_grid) {
    if (block_of_grid == 0 && threadIdx.x == 0) tell_used(job.of.verdict, job.blocks * 4);
    const int64_t block = int64_t{block_of_grid} * kWarps + warp_of_block();
    if (block >= job.blocks) return;
    const int64_t left = job.of.n - block * kRotated;
    const double norm = euclidean_norm(job.of, block * kRotated, left < kRotated ? left : kRotated);
    if (lane_of_warp() != 0) return;
    const auto scaled = static_cast<float>(norm * job.of.scale), kept = static_cast<float>(norm * job.of.unsent_factor);
    const bool good = is_finite(scaled) && is_finite(kept);
    job.norms[block] = good ? scaled : 0.0F;
    if (!good) tell_nonfinite(job.of.verdict);
  }
};

// The largest norms of all ranks.
struct LargestNorms {
  struct Job {
    Sums sums;
    float* largest;
    int64_t blocks;
  };

  static __device__ void run(const Job& job, uint32_t block_of_grid) {
    const int64_t i = int64_t{block_of_grid} * kThreads + threadIdx.x;
    if (i >= job.blocks) return;
    float largest = job.sums.first > 0 ? job.largest[i] : 0.0F;
    for (uint32_t p = 0; p < job.sums.count; ++p) {
      const float norm = reinterpret_cast<const float*>(job.sums.payloads[p])[i];
      if (!(norm >= 0 && is_finite(norm))) tell_rejected(job.sums.verdict, job.sums.first + p);
      largest = largest < norm ? norm : largest;
    }
    job.largest[i] = largest;
  }
};

// --- Codes. They are bytes, and payloads may begin at any address.
inline bool begins_words(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 4 == 0; }

__device__ __forceinline__ uint32_t load_four(const std::byte* from, bool aligned) {
  if (aligned) return __ldcs(reinterpret_cast<const uint32_t*>(from));
  uint32_t four = 0;
  for (int j = 0; j < 4; ++j) four |= static_cast<uint32_t>(from[j]) << 8 * j;
  return four;
}
__device__ __forceinline__ void store_four(uint32_t four, uint8_t* to, bool aligned) {
  if (aligned) {
    __stcs(reinterpret_cast<uint32_t*>(to), four);
  } else {
    for (int j = 0; j < 4; ++j) to[j] = static_cast<uint8_t>(four >> 8 * j);
  }
}

// --- Rotation.

struct Rotated {
  Quad at[kQuads];  // element g * 128 + lane * 4 + j
};

__device__ __forceinline__ void butterfly(float& first, float& second) {
  const float sum = first + second, difference = first - second;
  first = sum;
  second = difference;
}

__device__ __forceinline__ void transform(Rotated& x) {
  const unsigned lane = lane_of_warp();
#pragma unroll
  for (int g = 0; g < kQuads; ++g) {
    float(&v)[4] = x.at[g].at;
    butterfly(v[0], v[1]);
    butterfly(v[2], v[3]);
    butterfly(v[0], v[2]);
    butterfly(v[1], v[3]);
#pragma unroll
    for (unsigned apart = 1; apart < 32; apart *= 2) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float other = __shfl_xor_sync(kAllLanes, v[j], static_cast<int>(apart));
        v[j] = (lane & apart) != 0 ? other - v[j] : v[j] + other;
      }
    }
  }
#pragma unroll
  for (int apart = 1; apart < kQuads; apart *= 2) {
#pragma unroll
    for (int g = 0; g < kQuads; ++g) {
      if ((g & apart) != 0) continue;
#pragma unroll
      for (int j = 0; j < 4; ++j) butterfly(x.at[g].at[j], x.at[g + apart].at[j]);
    }
  }
}

// The sign changes of a block. The lowest bits of of(g) are those of the lane's four elements in quad g.
struct Signs {
  uint32_t own;  // the lane's word: number 4 * (lane % 8) + lane / 8

  __device__ __forceinline__ Signs(const Philox& philox, int64_t begin) {
    const unsigned lane = lane_of_warp();
    const Words words = shared_words(philox, philox.first_element + begin + lane % 8 * kSharedWordsEach);
    own = lane < 8 ? words.at[0] : lane < 16 ? words.at[1] : lane < 24 ? words.at[2] : words.at[3];
  }
  __device__ __forceinline__ uint32_t of(int g) const {
    const unsigned lane = lane_of_warp();
    return __shfl_sync(kAllLanes, own, static_cast<int>(lane / 8 * 8) + g) >> lane % 8 * 4;
  }

  static constexpr unsigned kSharedWordsEach = 4;
};

__device__ __forceinline__ float change_sign(uint32_t signs, int j, float value) {
  return __uint_as_float(__float_as_uint(value) ^ (signs >> j & 1) << 31);
}

// The values of codes (levels_of of thc.cc).
struct Levels {
  float low, unit;

  __device__ __forceinline__ Levels(float norm, int levels) {
    const float clamp = norm * ((2 + static_cast<float>(levels) / 64) / 32);
    unit = 2 * clamp / static_cast<float>(levels);
    low = -clamp;
    if (unit >= FLT_MIN) return;
    unit = low = 0;
  }
};

// Rotates the sums of the codes of `ranks` ranks back.
__device__ __forceinline__ void values_of_codes(Rotated& x, const Levels& levels, double ranks) {
  transform(x);
  const float unit = levels.unit * kNorm;
  const float sum = x.at[0].at[0];
#pragma unroll
  for (int g = 0; g < kQuads; ++g) {
#pragma unroll
    for (int j = 0; j < 4; ++j) x.at[g].at[j] *= unit;
  }
  // A constant added to all elements changes only the first element of the product with the matrix.
  if (lane_of_warp() == 0) {
    const double lows = kRotated * kNorm * ranks * levels.low;
    x.at[0].at[0] = static_cast<float>(double{sum} * unit + lows);
  }
}

// --- Second round: codes.
struct EncodeCodes {
  struct Job {
    Elements of;
    const float* norms;
    uint8_t* codes;
    int64_t blocks;
    Philox philox;
    int levels;
    bool aligned;  // codes, to words
  };

  static __device__ void run(const Job& job, uint32_t block_of_grid) {
    if (block_of_grid == 0 && threadIdx.x == 0) tell_used(job.of.verdict, job.blocks * kRotated);
    const int64_t block = int64_t{block_of_grid} * kWarps + warp_of_block();
    if (block >= job.blocks) return;
    if (job.of.aligned && (block + 1) * kRotated <= job.of.n) {
      encode_block<true>(job, block);
    } else {
      encode_block<false>(job, block);
    }
  }

  template <bool kWhole>
  static __device__ __forceinline__ void encode_block(const Job& job, int64_t block) {
    const Elements& of = job.of;
    const int64_t begin = block * kRotated, first = begin + lane_of_warp() * 4;
    const Levels levels(job.norms[block], job.levels);
    const Signs signs(job.philox, begin);
    Rotated x;
    load_p<kWhole>(of, first, 128, x.at);
    const float scale = of.scale * kNorm;
#pragma unroll
    for (int g = 0; g < kQuads; ++g) {
      const uint32_t changes = signs.of(g);
#pragma unroll
      for (int j = 0; j < 4; ++j) x.at[g].at[j] = change_sign(changes, j, x.at[g].at[j] * scale);
    }
    transform(x);
    const float per_unit = 1 / levels.unit, most = static_cast<float>(job.levels);
#pragma unroll
    for (int g = 0; g < kQuads; ++g) {
      const Bits random = random_bits(job.philox, first + g * 128);
      uint32_t four = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float above = (x.at[g].at[j] - levels.low) * per_unit;
        const float below = above < most ? above : most, inside = below > 0 ? below : 0.0F;
        uint32_t code = ((__float_as_uint(inside + 128) + random.at[j]) >> 16) & 0xff;
        if (levels.unit == 0) code = 0;
        four |= code << 8 * j;
        x.at[g].at[j] = static_cast<float>(code);
      }
      store_four(four, job.codes + first + g * 128, job.aligned);
    }
    if (of.next == nullptr) return;
    values_of_codes(x, levels, 1);
    Quad p[kQuads];
    load_p<kWhole>(of, first, 128, p);  // from a cache
#pragma unroll
    for (int g = 0; g < kQuads; ++g) {
      const uint32_t changes = signs.of(g);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float sent = change_sign(changes, j, x.at[g].at[j]) * of.error_scale;
        p[g].at[j] = p[g].at[j] * of.unsent_factor - sent;
      }
      keep<kWhole>(of, p[g], first + g * 128);
    }
  }
};

struct DecodeCodes {
  struct Job {
    Sums sums;
    const float* norms;
    int64_t blocks;
    Philox philox;
    int levels, summed;
    int64_t aligned;  // true if all payloads are, to words
  };

  static __device__ void run(const Job& job, uint32_t block_of_grid) {
    const int64_t block = int64_t{block_of_grid} * kWarps + warp_of_block();
    if (block >= job.blocks) return;
    if (job.sums.aligned && (block + 1) * kRotated <= job.sums.n) {
      decode_block<true>(job, block);
    } else {
      decode_block<false>(job, block);
    }
  }

  template <bool kWhole>
  static __device__ __forceinline__ void decode_block(const Job& job, int64_t block) {
    const Sums& sums = job.sums;
    const int64_t begin = block * kRotated, first = begin + lane_of_warp() * 4;
    const Signs signs(job.philox, begin);
    const auto most = static_cast<uint32_t>(job.levels * job.summed);
    uint32_t codes[kQuads][4] = {};
    struct Four {
      uint32_t of[kQuads];
    };
    const auto load_payload = [&](uint32_t p) {
      Four four;
#pragma unroll
      for (int g = 0; g < kQuads; ++g) four.of[g] = load_four(sums.payloads[p] + first + g * 128, job.aligned != 0);
      return four;
    };
    const auto add = [&](uint32_t p, const Four& four) {
      uint32_t largest = 0;
#pragma unroll
      for (int g = 0; g < kQuads; ++g) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const uint32_t code = four.of[g] >> 8 * j & 0xff;
          codes[g][j] += code;
          largest = code > largest ? code : largest;
        }
      }
      if (largest > most) tell_rejected(sums.verdict, sums.first + p);
    };
    uint32_t p = 0;
    for (; p + 2 <= sums.count; p += 2) {  // both are loaded before the first is used
      const Four one = load_payload(p), other = load_payload(p + 1);
      add(p, one);
      add(p + 1, other);
    }
    if (p < sums.count) add(p, load_payload(p));
    Rotated x;
#pragma unroll
    for (int g = 0; g < kQuads; ++g) {
#pragma unroll
      for (int j = 0; j < 4; ++j) x.at[g].at[j] = static_cast<float>(static_cast<int>(codes[g][j]));
    }
    values_of_codes(x, Levels(job.norms[block], job.levels), static_cast<double>(sums.count) * job.summed);
#pragma unroll
    for (int g = 0; g < kQuads; ++g) {
      const int64_t i = first + g * 128;
      const uint32_t changes = signs.of(g);
      Quad before{};
      if (sums.accumulate) before = load<kWhole>(sums.out, i, sums.n);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float value = change_sign(changes, j, x.at[g].at[j]);
        x.at[g].at[j] = sums.accumulate ? before.at[j] + value : value;
      }
      store<kWhole>(x.at[g], sums.out, i, sums.n);
    }
  }
};

class Thc final : public DeviceCompressor {
 public:
  using DeviceCompressor::DeviceCompressor;

 private:
  int levels() const { return static_cast<int>(spec().parameter); }

  void enqueue_encode(std::span<const Encode> jobs, Queue& queue) const override {
    Launches<WriteNorms> norms(queue);
    Launches<EncodeCodes> codes(queue);
    for (const Encode& job : jobs) {
      const int64_t blocks = block_count(static_cast<int64_t>(job.gradient.size()));
      const int64_t launched = std::max<int64_t>(1, blocks_of(blocks, kWarps));
      if (job.work.round == 0) {
        norms.add({elements_of(job), reinterpret_cast<float*>(job.payload.data()), blocks}, launched);
      } else {
        codes.add({.of = elements_of(job),
                   .norms = reinterpret_cast<const float*>(job.work.round_memory),
                   .codes = reinterpret_cast<uint8_t*>(job.payload.data()),
                   .blocks = blocks,
                   .philox = philox_of(job.work),
                   .levels = levels(),
                   .aligned = begins_words(job.payload.data())},
                  launched);
      }
    }
    norms.finish();
    codes.finish();
  }

  void enqueue_decode(std::span<const Decode> jobs, Queue& queue) const override {
    for (const Decode& job : jobs) {
      const std::span<const Decode> one(&job, 1);
      const int64_t blocks = block_count(static_cast<int64_t>(job.out.size()));
      auto* const norms = reinterpret_cast<float*>(job.work.round_memory);
      if (job.work.round == 0) {
        decode_by<LargestNorms>(
            one, queue,
            [&](const Decode&, const Sums& sums) -> LargestNorms::Job {
              return {sums, norms, blocks};
            },
            [&](const Decode&) { return blocks_of(blocks, kThreads); });
      } else {
        decode_by<DecodeCodes>(
            one, queue,
            [&](const Decode&, const Sums& sums) -> DecodeCodes::Job {
              bool aligned = true;
              for (size_t p = 0; p < sums.count; ++p) aligned &= begins_words(sums.payloads[p]);
              return {sums, norms, blocks, philox_of(job.work), levels(), job.summed, aligned ? 1 : 0};
            },
            [&](const Decode&) { return blocks_of(blocks, kWarps); });
      }
    }
  }
};

}  // namespace

std::unique_ptr<Compressor> thc(std::unique_ptr<Compressor> host) { return std::make_unique<Thc>(std::move(host)); }

}  // namespace gradtune::compress::cuda
