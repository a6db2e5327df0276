// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// `none`, `bf16` and `fp16` on a device: a thread has two times four elements. Bytes moved per element: as on the host.
#include <cmath>

#include "engine/compress/cuda/device_compressor.h"
#include "engine/compress/cuda/frames.cuh"
#include "engine/compress/cuda/numbers.cuh"
#include "engine/compress/simd/dense_kernels.h"

namespace gradtune::compress::cuda {
namespace {

constexpr int kQuads = 2;
constexpr int64_t kTile = kThreads * 4 * kQuads, kStep = kThreads * 4;

template <core::DType kWire>
constexpr int kWidth = kWire == core::DType::f32 ? 4 : 2;

// Writes the codes of four elements, which become what decoders make of them.
template <core::DType kWire, bool kWhole>
__device__ __forceinline__ void store_codes(Quad& sent, std::byte* payload, int64_t i, int64_t n) {
  if constexpr (kWire == core::DType::f32) {
    store<kWhole>(sent, reinterpret_cast<float*>(payload), i, n);
  } else {
    uint32_t codes[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      codes[j] = narrow<kWire>(sent.at[j]);
      sent.at[j] = widen<kWire>(codes[j]);
    }
    auto* const to = reinterpret_cast<uint16_t*>(payload) + i;
    if constexpr (kWhole) {
      __stcs(reinterpret_cast<uint2*>(to), make_uint2(codes[0] | codes[1] << 16, codes[2] | codes[3] << 16));
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (i + j < n) to[j] = static_cast<uint16_t>(codes[j]);
      }
    }
  }
}

template <core::DType kWire, bool kWhole>
__device__ __forceinline__ Quad load_codes(const std::byte* payload, int64_t i, int64_t n) {
  if constexpr (kWire == core::DType::f32) {
    return load<kWhole>(reinterpret_cast<const float*>(payload), i, n);
  } else {
    const auto* const from = reinterpret_cast<const uint16_t*>(payload) + i;
    uint32_t codes[4];
    if constexpr (kWhole) {
      const uint2 two = __ldcs(reinterpret_cast<const uint2*>(from));
      codes[0] = two.x & 0xffff, codes[1] = two.x >> 16, codes[2] = two.y & 0xffff, codes[3] = two.y >> 16;
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) codes[j] = i + j < n ? from[j] : 0;
    }
    Quad quad;
#pragma unroll
    for (int j = 0; j < 4; ++j) quad.at[j] = widen<kWire>(codes[j]);
    return quad;
  }
}

template <core::DType kWire>
struct DenseEncode {
  struct Job {
    Elements of;
    std::byte* payload;
    uint32_t largest;  // bits of the largest |scale * p| that may be sent
    bool aligned;
  };

  static __device__ void run(const Job& job, uint32_t block) {
    if (block == 0 && threadIdx.x == 0) tell_used(job.of.verdict, job.of.n * kWidth<kWire>);
    const int64_t tile = int64_t{block} * kTile;
    if (job.aligned && tile + kTile <= job.of.n) {
      encode_tile<true>(job, tile);
    } else {
      encode_tile<false>(job, tile);
    }
  }

  template <bool kWhole>
  static __device__ __forceinline__ void encode_tile(const Job& job, int64_t tile) {
    const int64_t first = tile + int64_t{threadIdx.x} * 4;
    Quad p[kQuads];
    load_p<kWhole>(job.of, first, kStep, p);
    bool good = true;
#pragma unroll
    for (int g = 0; g < kQuads; ++g) {
      const int64_t i = first + g * kStep;
      Quad value;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        p[g].at[j] = value.at[j] = p[g].at[j] * job.of.scale;
        good &= abs_bits(p[g].at[j]) <= job.largest;
      }
      store_codes<kWire, kWhole>(value, job.payload, i, job.of.n);
#pragma unroll
      for (int j = 0; j < 4; ++j) value.at[j] = (p[g].at[j] - value.at[j]) * job.of.error_scale;
      keep<kWhole>(job.of, value, i);
    }
    if (!good) tell_nonfinite(job.of.verdict);
  }
};

template <core::DType kWire>
struct DenseDecode {
  struct Job {
    Sums sums;
    bool aligned;
  };

  static __device__ void run(const Job& job, uint32_t block) {
    const int64_t tile = int64_t{block} * kTile;
    if (job.aligned && tile + kTile <= job.sums.n) {
      decode_tile<true>(job.sums, tile);
    } else {
      decode_tile<false>(job.sums, tile);
    }
  }

  template <bool kWhole>
  static __device__ __forceinline__ void decode_tile(const Sums& sums, int64_t tile) {
    const int64_t first = tile + int64_t{threadIdx.x} * 4;
    Quad sum[kQuads];
    const auto load_payload = [&](uint32_t p, Quad(&to)[kQuads]) {
#pragma unroll
      for (int g = 0; g < kQuads; ++g) {
        to[g] = load_codes<kWire, kWhole>(sums.payloads[p], first + g * kStep, sums.n);
      }
    };
    const auto add = [&](const Quad(&value)[kQuads]) {
#pragma unroll
      for (int g = 0; g < kQuads; ++g) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[g].at[j] += value[g].at[j];
      }
    };
    uint32_t p = 0;
    if (sums.accumulate) {
#pragma unroll
      for (int g = 0; g < kQuads; ++g) sum[g] = load<kWhole>(sums.out, first + g * kStep, sums.n);
    } else {
      load_payload(p++, sum);
    }
    for (; p + 2 <= sums.count; p += 2) {
      Quad one[kQuads], other[kQuads];
      load_payload(p, one);
      load_payload(p + 1, other);
      add(one);
      add(other);
    }
    if (p < sums.count) {
      Quad last[kQuads];
      load_payload(p, last);
      add(last);
    }
#pragma unroll
    for (int g = 0; g < kQuads; ++g) store<kWhole>(sum[g], sums.out, first + g * kStep, sums.n);
  }
};

template <core::DType kWire>
class Dense final : public DeviceCompressor {
 public:
  using DeviceCompressor::DeviceCompressor;

 private:
  void enqueue_encode(std::span<const Encode> jobs, Queue& queue) const override {
    Launches<DenseEncode<kWire>> launches(queue);
    for (const Encode& job : jobs) {
      const Elements of = elements_of(job);
      launches.add({.of = of,
                    .payload = job.payload.data(),
                    .largest = largest_that_sums(kWire, job.summed),
                    .aligned = of.aligned && is_aligned(job.payload.data())},
                   std::max<int64_t>(1, blocks_of(of.n, kTile)));
    }
    launches.finish();
  }

  void enqueue_decode(std::span<const Decode> jobs, Queue& queue) const override {
    decode_by<DenseDecode<kWire>>(
        jobs, queue,
        [](const Decode&, const Sums& sums) -> typename DenseDecode<kWire>::Job {
          bool aligned = sums.aligned;
          for (size_t p = 0; p < sums.count; ++p) aligned &= is_aligned(sums.payloads[p]);
          return {sums, aligned};
        },
        [](const Decode& job) { return blocks_of(static_cast<int64_t>(job.out.size()), kTile); });
  }
};

}  // namespace

std::unique_ptr<Compressor> none(std::unique_ptr<Compressor> host) {
  return std::make_unique<Dense<core::DType::f32>>(std::move(host));
}
std::unique_ptr<Compressor> bf16(std::unique_ptr<Compressor> host) {
  return std::make_unique<Dense<core::DType::bf16>>(std::move(host));
}
std::unique_ptr<Compressor> fp16(std::unique_ptr<Compressor> host) {
  return std::make_unique<Dense<core::DType::f16>>(std::move(host));
}

}  // namespace gradtune::compress::cuda
