// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Numbers of 16 bits on a device, with the bits of the host's (engine/core/float16.h).
#pragma once

#include "engine/compress/cuda/elements.cuh"
#include "engine/core/gradient_table.h"

#ifdef __CUDACC__
#include <cuda_fp16.h>
#endif

namespace gradtune::compress::cuda {

// The number of 16 bits for a NaN is made by hand: it keeps the bits that the host keeps.
__device__ __forceinline__ uint32_t narrow_f16(float value) {
  const uint32_t bits = __float_as_uint(value);
  if (abs_bits(value) > kInfinityBits) return (bits >> 16 & 0x8000) | 0x7e00 | (bits >> 13 & 0x3ff);
  return __half_as_ushort(__float2half_rn(value));
}
__device__ __forceinline__ float widen_f16(uint32_t bits) {
  if ((bits & 0x7fff) > 0x7c00) return __uint_as_float((bits & 0x8000) << 16 | 0x7fc00000 | (bits & 0x3ff) << 13);
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

template <core::DType kWire>
__device__ __forceinline__ uint32_t narrow(float value) {
  return kWire == core::DType::bf16 ? narrow_bf16(value) : narrow_f16(value);
}
template <core::DType kWire>
__device__ __forceinline__ float widen(uint32_t bits) {
  return kWire == core::DType::bf16 ? widen_bf16(bits) : widen_f16(bits);
}

}  // namespace gradtune::compress::cuda
