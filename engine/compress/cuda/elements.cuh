// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Reads the elements of an encode, writes its errors, and reports findings. Kernels access four elements at a time,
// 16 bytes, if all arrays begin at multiples of that. Otherwise, and at the end, they access them one by one.
#pragma once

#include "engine/compress/cuda/device.cuh"
#include "engine/compress/shared.h"

namespace gradtune::compress::cuda {

// --- Of an encode (EncodeRun of shared.h), for kernels.
struct Elements {
  const float* gradient;
  const float* residual;  // or null
  float* next;            // the next residual, or null
  Verdict* verdict;
  int64_t n;
  float scale, error_scale, unsent_factor;
  bool add;      // to the next residual
  bool aligned;  // all arrays of floats, to 16 bytes
};

inline bool is_aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

inline Elements elements_of(const Encode& job) {
  return {.gradient = job.gradient.data(),
          .residual = job.residual,
          .next = job.residual_next,
          .verdict = job.verdict,
          .n = static_cast<int64_t>(job.gradient.size()),
          .scale = job.scale,
          .error_scale = job.error_scale,
          .unsent_factor = unsent_factor(job),
          .add = job.add_to_residual_next,
          .aligned = is_aligned(job.gradient.data()) && is_aligned(job.residual) && is_aligned(job.residual_next)};
}

// --- Numbers.

__device__ __forceinline__ uint32_t abs_bits(float value) { return __float_as_uint(value) & kAbsBits; }
__device__ __forceinline__ bool is_finite(float value) { return abs_bits(value) < kInfinityBits; }
__device__ __forceinline__ bool is_finite(double value) { return value - value == 0; }

__device__ __forceinline__ uint32_t narrow_bf16(float value) {
  const uint32_t bits = __float_as_uint(value);
  if (abs_bits(value) > kInfinityBits) return bits >> 16 | 0x40;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
__device__ __forceinline__ float widen_bf16(uint32_t bits) { return __uint_as_float(bits << 16); }

// --- Four elements. With kWhole all of them are there, and begin at a multiple of 16 bytes; otherwise those before n
// are, and others are 0.

struct Quad {
  float at[4];
};

template <bool kWhole>
__device__ __forceinline__ Quad load(const float* from, int64_t i, int64_t n) {
  Quad quad;
  if constexpr (kWhole) {
    const float4 four = __ldcs(reinterpret_cast<const float4*>(from + i));
    quad = {{four.x, four.y, four.z, four.w}};
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j) quad.at[j] = i + j < n ? from[i + j] : 0.0F;
  }
  return quad;
}

template <bool kWhole>
__device__ __forceinline__ void store(const Quad& quad, float* to, int64_t i, int64_t n) {
  if constexpr (kWhole) {
    __stcs(reinterpret_cast<float4*>(to + i), make_float4(quad.at[0], quad.at[1], quad.at[2], quad.at[3]));
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (i + j < n) to[i + j] = quad.at[j];
    }
  }
}

// p = gradient + residual, of kCount quads that are `step` elements apart. All is asked for before any is used.
template <bool kWhole, int kCount>
__device__ __forceinline__ void load_p(const Elements& of, int64_t first, int64_t step, Quad (&p)[kCount]) {
#pragma unroll
  for (int g = 0; g < kCount; ++g) p[g] = load<kWhole>(of.gradient, first + g * step, of.n);
  if (of.residual == nullptr) return;
  Quad residual[kCount];
#pragma unroll
  for (int g = 0; g < kCount; ++g) residual[g] = load<kWhole>(of.residual, first + g * step, of.n);
#pragma unroll
  for (int g = 0; g < kCount; ++g) {
#pragma unroll
    for (int j = 0; j < 4; ++j) p[g].at[j] += residual[g].at[j];
  }
}

__device__ __forceinline__ float load_p(const Elements& of, int64_t i) {
  return of.residual == nullptr ? of.gradient[i] : of.gradient[i] + of.residual[i];
}

// Writes errors where they are kept.
template <bool kWhole>
__device__ __forceinline__ void keep(const Elements& of, Quad missed, int64_t i) {
  if (of.next == nullptr) return;
  if (of.add) {
    const Quad before = load<kWhole>(of.next, i, of.n);
#pragma unroll
    for (int j = 0; j < 4; ++j) missed.at[j] = before.at[j] + missed.at[j];
  }
  store<kWhole>(missed, of.next, i, of.n);
}

// --- Verdicts.

__device__ __forceinline__ void tell_nonfinite(Verdict* verdict) { atomicOr(&verdict->nonfinite, 1U); }

// The first payload that can not be decoded: the lowest of those that are told.
inline __device__ GRADTUNE_NOINLINE void tell_rejected(Verdict* verdict, uint32_t payload) {
  uint32_t seen = atomicOr(&verdict->rejected, 0U);
  while (seen == 0 || payload + 1 < seen) {
    const uint32_t before = atomicCAS(&verdict->rejected, seen, payload + 1);
    if (before == seen) return;
    seen = before;
  }
}

__device__ __forceinline__ void tell_used(Verdict* verdict, int64_t bytes) {
  atomicAdd(reinterpret_cast<unsigned long long*>(&verdict->used_bytes), static_cast<unsigned long long>(bytes));
}

// --- Warps.

__device__ __forceinline__ unsigned lane_of_warp() { return threadIdx.x % 32; }
__device__ __forceinline__ unsigned warp_of_block() { return threadIdx.x / 32; }

__device__ __forceinline__ uint32_t inclusive_sum(uint32_t value, unsigned lane) {
#pragma unroll
  for (unsigned by = 1; by < 32; by *= 2) {
    const uint32_t other = __shfl_up_sync(kAllLanes, value, by);
    if (lane >= by) value += other;
  }
  return value;
}

// The sum over the threads before this one, and over all. `sums` is shared memory, of a word for each warp, that no
// thread uses otherwise until the next barrier. All threads of the block call it.
__device__ __forceinline__ uint32_t exclusive_sum_of_block(uint32_t value, uint32_t* sums, uint32_t& total) {
  const unsigned lane = lane_of_warp(), warp = warp_of_block();
  const uint32_t inclusive = inclusive_sum(value, lane);
  if (lane == 31) sums[warp] = inclusive;
  __syncthreads();
  uint32_t before = 0;
  total = 0;
  for (unsigned w = 0; w < kWarps; ++w) {
    if (w == warp) before = total;
    total += sums[w];
  }
  return before + inclusive - value;
}

}  // namespace gradtune::compress::cuda
