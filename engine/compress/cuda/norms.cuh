// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Euclidean norms by a warp, with the host's order of sums (euclidean_norm and quick_norm of simd-inl.h). All lanes
// call these, and all have the result.
#pragma once

#include "engine/compress/cuda/elements.cuh"

namespace gradtune::compress::cuda {

// Lane c sums elements c, c + 32, and so on, of the whole groups of 32. Then pairs of lanes that are 16 and 8 apart
// are added, and the rest one after the other.
__device__ __forceinline__ double euclidean_norm(const Elements& of, int64_t first, int64_t n) {
  const unsigned lane = lane_of_warp();
  const int64_t whole = n / 32 * 32;
  double sum = 0;
#pragma unroll 8
  for (int64_t i = lane; i < whole; i += 32) {
    const double p = load_p(of, first + i);
    sum = p * p + sum;
  }
  // (first + second) + (third + fourth): eight apart, then sixteen.
  sum += __shfl_down_sync(kAllLanes, sum, 8);
  sum += __shfl_down_sync(kAllLanes, sum, 16);
  if (lane < 8) {
    for (int64_t i = whole + lane; i < n; i += 8) {
      const double p = load_p(of, first + i);
      sum += p * p;
    }
  }
  sum += __shfl_down_sync(kAllLanes, sum, 4);
  sum += __shfl_down_sync(kAllLanes, sum, 2);
  sum += __shfl_down_sync(kAllLanes, sum, 1);
  return __shfl_sync(kAllLanes, sqrt(sum), 0);
}

// In pairs that are 8 apart, then 4, 2, 1; of the lanes below 16.
__device__ __forceinline__ float sum_of_sixteen(float sum, int width = 32) {
  sum += __shfl_down_sync(kAllLanes, sum, 8, width);
  sum += __shfl_down_sync(kAllLanes, sum, 4, width);
  sum += __shfl_down_sync(kAllLanes, sum, 2, width);
  sum += __shfl_down_sync(kAllLanes, sum, 1, width);
  return sum;
}

// For elements whose squares do not fit in single precision. They are rare, so it is not inlined.
inline __device__ GRADTUNE_NOINLINE float rare_norm(const Elements& of, int64_t first, int64_t n) {
  return static_cast<float>(euclidean_norm(of, first, n));
}

__device__ __forceinline__ float quick_norm(const Elements& of, int64_t first, int64_t n) {
  const unsigned lane = lane_of_warp();
  const int64_t whole = n / 32 * 32;
  float sum = 0;
  for (int64_t i = lane; i < whole; i += 32) {
    const float p = load_p(of, first + i);
    sum = p * p + sum;
  }
  sum += __shfl_down_sync(kAllLanes, sum, 16);
  if (lane < 16) {
    for (int64_t i = whole + lane; i < n; i += 16) {
      const float p = load_p(of, first + i);
      sum += p * p;
    }
  }
  const float squares = __shfl_sync(kAllLanes, sum_of_sixteen(sum), 0);
  const bool is_safe = squares > 0x1p-80F && squares < 0x1p120F;
  return is_safe ? sqrtf(squares) : rare_norm(of, first, n);
}

}  // namespace gradtune::compress::cuda
