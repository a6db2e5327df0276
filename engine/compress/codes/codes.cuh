// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Turns numbers into codes of 8 bits or fewer, and codes into numbers, one element at a time: the formats of
// codes-inl.h.
// Each format makes the unit of a block from the block's norm. It makes the code of x = element / unit, with 16 random
// bits, and the value that this code stands for. It also tells the code of 0, and which codes no encoder sends.
#pragma once

#ifdef __CUDACC__
#include <cuda_fp16.h>
#endif

#include <cfloat>

#include "engine/compress/cuda/elements.cuh"

namespace gradtune::compress::cuda {

struct Coded {
  uint32_t code;  // its lowest byte
  float value;
};

// Codes count from the lowest integer.
template <bool kIsRandom>
class Integers {
 public:
  static constexpr bool kRandom = kIsRandom;

  __device__ explicit Integers(int bits)
      : high_(bits == 1 ? 1 : (1 << (bits - 1)) - 1),
        low_(bits == 1 ? 0 : -high_),
        shift_(bits == 1 ? 0.5F : 0.0F),
        zero_(shift_ - static_cast<float>(low_)) {}

  __device__ __forceinline__ float largest_value() const { return static_cast<float>(high_) - shift_; }
  __device__ __forceinline__ float unit(float norm) const { return norm / largest_value(); }
  __device__ __forceinline__ uint32_t zero_code() const { return static_cast<uint32_t>(-low_); }

  __device__ __forceinline__ Coded encode(float x, uint32_t random) const {
    if constexpr (kRandom) {
      constexpr int kPlaces = 15;
      constexpr int kBitsOf384 = 0x43c00000;
      const int fixed = static_cast<int>(__float_as_uint(x + (384 + shift_)));
      const int drawn = ((fixed + static_cast<int>(random & 0x7fff)) >> kPlaces) - (kBitsOf384 >> kPlaces) - low_;
      const int most = high_ - low_;
      const int code = drawn < 0 ? 0 : drawn > most ? most : drawn;
      return {static_cast<uint32_t>(code), value(static_cast<uint32_t>(code))};
    } else {
      constexpr float kPlace = 0x1.8p23F;  // its last place is that of integers
      const float sum = x + kPlace;
      return {__float_as_uint(sum) - (0x4b400000 + static_cast<uint32_t>(low_)), sum - kPlace};
    }
  }
  __device__ __forceinline__ float value(uint32_t code) const {
    return static_cast<float>(static_cast<int>(code)) - zero_;
  }
  __device__ __forceinline__ float step(float unit) const { return unit; }

  // True if one of these four codes of 8 bits is 255.
  __device__ __forceinline__ bool none_sends(uint32_t four) const {
    return (((four & 0x7f7f7f7f) + 0x01010101) & four & 0x80808080) != 0;
  }

 private:
  int high_, low_;
  float shift_, zero_;
};

// Sign, exponent, and this many bits of mantissa; the largest code is that of the largest value.
template <int kMantissa, uint32_t kLargestCode>
class Floats {
 public:
  static constexpr bool kRandom = false;
  __device__ explicit Floats(int /*bits*/) {}

  __device__ __forceinline__ float largest_value() const { return kMantissa == 3 ? 448.0F : 57344.0F; }
  __device__ __forceinline__ float unit(float norm) const { return norm / largest_value(); }
  __device__ __forceinline__ uint32_t zero_code() const { return 0; }

  __device__ __forceinline__ Coded encode(float x, uint32_t /*random*/) const {
    const uint32_t bits = abs_bits(x);
    const uint32_t exponent = bits & 0x7f800000, power = exponent < kSmallest ? kSmallest : exponent;
    const uint32_t added = power + (uint32_t{kShift} << 23);
    const float sum = __uint_as_float(bits) + __uint_as_float(added);
    const float magnitude = sum - __uint_as_float(added);
    const uint32_t sign = __float_as_uint(x) & 0x80000000;
    const uint32_t code = (__float_as_uint(sum) - added) + ((power - kSmallest) >> kShift);
    return {code | sign >> 24, __uint_as_float(__float_as_uint(magnitude) | sign)};
  }
  // As fp16, which has room for the exponents and another bias: times what `step` has more.
  __device__ __forceinline__ float value(uint32_t code) const {
    const uint32_t bits = (code & 0x80) << 8 | (code & 0x7f) << (10 - kMantissa);
    return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
  }
  __device__ __forceinline__ float step(float unit) const { return unit * static_cast<float>(1 << (15 - kBias)); }
  __device__ __forceinline__ bool none_sends(uint32_t four) const {
    return (((four & 0x7f7f7f7f) + (0x7f - kLargestCode) * 0x01010101U) & 0x80808080) != 0;
  }

 private:
  static constexpr int kBias = (1 << (6 - kMantissa)) - 1;
  static constexpr int kShift = 23 - kMantissa;
  static constexpr uint32_t kSmallest = static_cast<uint32_t>(127 - kBias + 1) << 23;  // of the normal numbers
};

// Sign and exponent of one of both neighbouring powers of two.
class Powers {
 public:
  static constexpr bool kRandom = true;
  __device__ explicit Powers(int /*bits*/) {}

  __device__ __forceinline__ float largest_value() const { return 1; }
  __device__ __forceinline__ float unit(float norm) const {
    const uint32_t power = __float_as_uint(norm) & kInfinityBits;
    return norm == 0 ? 0.0F : __uint_as_float(power + (1U << 23));
  }
  __device__ __forceinline__ uint32_t zero_code() const { return 0; }

  __device__ __forceinline__ Coded encode(float x, uint32_t random) const {
    const uint32_t magnitude = (abs_bits(x) + ((random << 7) + 64)) >> 23;
    const uint32_t code = magnitude | (__float_as_uint(x) >> 24 & 0x80);
    return {code, value(code)};
  }
  __device__ __forceinline__ float value(uint32_t code) const {
    return __uint_as_float((code & 0x7f) << 23 | (code & 0x80) << 24);
  }
  __device__ __forceinline__ float step(float unit) const { return unit; }
  __device__ __forceinline__ bool none_sends(uint32_t /*four*/) const { return false; }
};

// The divisor of a block's elements, and its inverse, by which they are multiplied.
struct Unit {
  float unit, inverse;
  bool good;  // false where something is not finite; the unit is zero then
};

// By the norm of what is sent.
template <class Format>
__device__ __forceinline__ Unit make_unit(const Format& format, float norm, bool is_bf16) {
  float unit = format.unit(norm);
  if (is_bf16) unit = __uint_as_float((__float_as_uint(unit) + 0xffff) & 0xffff0000);  // the next larger one
  const bool good = is_finite(norm) && is_finite(unit * format.largest_value());
  if (!(good && unit >= FLT_MIN)) unit = 0;
  return {unit, 1 / unit, good};
}

// The code of one element, p, which becomes its error.
template <class Format>
__device__ __forceinline__ uint32_t encode_element(const Elements& of, const Format& format, const Unit& unit,
                                                   uint32_t random, float& p) {
  const float sent = p * of.scale;
  Coded coded = format.encode(unit.unit > 0 ? sent * unit.inverse : 0.0F, random);
  if (!(unit.unit > 0)) coded = {format.zero_code(), 0.0F};
  p = (sent - coded.value * unit.unit) * of.error_scale;
  return coded.code;
}

}  // namespace gradtune::compress::cuda
