// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// CUDA's names for kernels that the emulator runs, as far as they are used. The compiler's option -include puts it
// ahead of a .cu file, in place of cuda_runtime.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tests/emulator/emulator.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define GRADTUNE_SHARED(type, name) type& name = gradtune::emulator::shared<type, decltype([] {})>()

using dim3 = gradtune::emulator::Size;
struct alignas(8) float2 {
  float x, y;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
constexpr uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
constexpr float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
constexpr uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

namespace gradtune::emulator {

template <class T, class Place>
inline const char place_of = 0;
template <class T, class Place>
T& shared() {
  return *static_cast<T*>(shared_memory(&place_of<T, Place>, sizeof(T), alignof(T)));
}

template <class T>
__attribute__((no_sanitize("thread"))) uint64_t to_bits(T value) {
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof value);
  return bits;
}
template <class T>
__attribute__((no_sanitize("thread"))) T from_bits(uint64_t bits) {
  T value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

// All lanes take the result of kOperation on all values.
template <auto kOperation>
__attribute__((no_sanitize("thread"))) void fold(Lane* lanes, uint32_t mask) {
  uint64_t all = 0;
  bool first = true;
  for (unsigned i = 0; i < 32; ++i) {
    if ((mask >> i & 1) == 0) continue;
    all = first ? lanes[i].value : kOperation(all, lanes[i].value);
    first = false;
  }
  for (unsigned i = 0; i < 32; ++i) {
    if ((mask >> i & 1) != 0) lanes[i].result = all;
  }
}

inline constexpr auto kOr = [](uint64_t a, uint64_t b) { return a | b; };
inline constexpr auto kSum = [](uint64_t a, uint64_t b) { return a + b; };
inline constexpr auto kMost = [](uint64_t a, uint64_t b) { return b < a ? a : b; };
inline constexpr auto kLeast = [](uint64_t a, uint64_t b) { return a < b ? a : b; };

}  // namespace gradtune::emulator

#define threadIdx (gradtune::emulator::position().thread)
#define blockIdx (gradtune::emulator::position().block)
#define blockDim (gradtune::emulator::position().block_size)
#define gridDim (gradtune::emulator::position().grid_size)

// NOLINTBEGIN: CUDA's own names
#define GRADTUNE_HERE gradtune::emulator::Where where = gradtune::emulator::Where::current()

inline void __syncthreads(GRADTUNE_HERE) { gradtune::emulator::barrier(false, where); }
inline int __syncthreads_or(int predicate, GRADTUNE_HERE) {
  return gradtune::emulator::barrier(predicate != 0, where) > 0 ? 1 : 0;
}
inline int __syncthreads_count(int predicate, GRADTUNE_HERE) {
  return gradtune::emulator::barrier(predicate != 0, where);
}
inline void __syncwarp(uint32_t mask = ~0U, GRADTUNE_HERE) {
  gradtune::emulator::meet(
      mask, 0, 0, [](gradtune::emulator::Lane*, uint32_t) {}, where);
}

template <class T>
T __shfl_sync(uint32_t mask, T value, int from, int width = 32, GRADTUNE_HERE) {
  using namespace gradtune::emulator;
  const unsigned first = lane() & ~(static_cast<unsigned>(width) - 1);
  const uint64_t source = first | (static_cast<unsigned>(from) & (static_cast<unsigned>(width) - 1));
  return from_bits<T>(meet(mask, to_bits(value), source, exchange, where));
}
template <class T>
T __shfl_xor_sync(uint32_t mask, T value, int lanes, int /*width*/ = 32, GRADTUNE_HERE) {
  using namespace gradtune::emulator;
  return from_bits<T>(meet(mask, to_bits(value), lane() ^ static_cast<unsigned>(lanes), exchange, where));
}
template <class T>
T __shfl_up_sync(uint32_t mask, T value, unsigned by, int width = 32, GRADTUNE_HERE) {
  using namespace gradtune::emulator;
  const unsigned first = lane() & ~(static_cast<unsigned>(width) - 1);
  const uint64_t source = lane() < first + by ? lane() : lane() - by;
  return from_bits<T>(meet(mask, to_bits(value), source, exchange, where));
}
template <class T>
T __shfl_down_sync(uint32_t mask, T value, unsigned by, int width = 32, GRADTUNE_HERE) {
  using namespace gradtune::emulator;
  const unsigned last = lane() | (static_cast<unsigned>(width) - 1);
  const uint64_t source = lane() + by > last ? lane() : lane() + by;
  return from_bits<T>(meet(mask, to_bits(value), source, exchange, where));
}
inline uint32_t __ballot_sync(uint32_t mask, int predicate, GRADTUNE_HERE) {
  using namespace gradtune::emulator;
  const uint64_t bit = predicate != 0 ? uint64_t{1} << lane() : 0;
  return static_cast<uint32_t>(meet(mask, bit, 0, fold<kOr>, where));
}
inline int __any_sync(uint32_t mask, int predicate, GRADTUNE_HERE) {
  return __ballot_sync(mask, predicate, where) != 0;
}
inline uint32_t __reduce_add_sync(uint32_t mask, uint32_t value, GRADTUNE_HERE) {
  using namespace gradtune::emulator;
  return static_cast<uint32_t>(meet(mask, value, 0, fold<kSum>, where));
}
inline uint32_t __reduce_or_sync(uint32_t mask, uint32_t value, GRADTUNE_HERE) {
  using namespace gradtune::emulator;
  return static_cast<uint32_t>(meet(mask, value, 0, fold<kOr>, where));
}
inline uint32_t __reduce_max_sync(uint32_t mask, uint32_t value, GRADTUNE_HERE) {
  using namespace gradtune::emulator;
  return static_cast<uint32_t>(meet(mask, value, 0, fold<kMost>, where));
}
inline uint32_t __reduce_min_sync(uint32_t mask, uint32_t value, GRADTUNE_HERE) {
  using namespace gradtune::emulator;
  return static_cast<uint32_t>(meet(mask, value, 0, fold<kLeast>, where));
}

// Relaxed, as on a device: they order nothing else.
template <class T>
T atomicAdd(T* to, std::type_identity_t<T> value) {
  return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}
template <class T>
T atomicOr(T* to, std::type_identity_t<T> value) {
  return __atomic_fetch_or(to, value, __ATOMIC_RELAXED);
}
template <class T>
T atomicMax(T* to, std::type_identity_t<T> value) {
  T old = __atomic_load_n(to, __ATOMIC_RELAXED);
  while (old < value && !__atomic_compare_exchange_n(to, &old, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old;
}
template <class T>
T atomicCAS(T* to, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  __atomic_compare_exchange_n(to, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}

template <class T>
T __ldcs(const T* from, GRADTUNE_HERE) {
  gradtune::emulator::must_be_aligned(from, alignof(T), where);
  return *from;
}
template <class T>
T __ldg(const T* from, GRADTUNE_HERE) {
  gradtune::emulator::must_be_aligned(from, alignof(T), where);
  return *from;
}
template <class T>
void __stcs(T* to, std::type_identity_t<T> value, GRADTUNE_HERE) {
  gradtune::emulator::must_be_aligned(to, alignof(T), where);
  *to = value;
}
inline uint32_t __float_as_uint(float value) {
  return gradtune::emulator::from_bits<uint32_t>(gradtune::emulator::to_bits(value));
}
inline float __uint_as_float(uint32_t bits) { return gradtune::emulator::from_bits<float>(bits); }
struct __half {
  _Float16 value;
};
inline __half __float2half_rn(float value) { return {static_cast<_Float16>(value)}; }
inline float __half2float(__half half) { return static_cast<float>(half.value); }
inline unsigned short __half_as_ushort(__half half) {
  return gradtune::emulator::from_bits<uint16_t>(gradtune::emulator::to_bits(half));
}
inline __half __ushort_as_half(unsigned short bits) { return gradtune::emulator::from_bits<__half>(bits); }
inline int __popc(uint32_t value) { return __builtin_popcount(value); }
inline int __popcll(uint64_t value) { return __builtin_popcountll(value); }
inline int __clz(int value) { return value == 0 ? 32 : __builtin_clz(static_cast<uint32_t>(value)); }
inline int __ffs(int value) { return __builtin_ffs(value); }
inline uint32_t __funnelshift_l(uint32_t low, uint32_t high, uint32_t by) {
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) << by % 32 >> 32);
}
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t by) {
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> by % 32);
}
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return static_cast<uint32_t>(uint64_t{a} * b >> 32); }
inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>(static_cast<__uint128_t>(a) * b >> 64);
}
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = uint64_t{high} << 32 | low;
  uint32_t result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    result |= static_cast<uint32_t>(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  }
  return result;
}
// NOLINTEND
