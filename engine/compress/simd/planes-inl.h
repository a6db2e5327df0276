// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Codes of fewer than 8 bits, stored in planes. Each group of 64 elements has a 64-bit word with bit 0 of every code,
// then one with bit 1, and so on. A vector's mask of a bit is thus exactly the stored form. The last group is padded
// with zeros. Compiled once per target by Highway, as simd-inl.h is.
#if defined(GRADTUNE_ENGINE_COMPRESS_PLANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADTUNE_ENGINE_COMPRESS_PLANES_INL_H_
#undef GRADTUNE_ENGINE_COMPRESS_PLANES_INL_H_
#else
#define GRADTUNE_ENGINE_COMPRESS_PLANES_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/compress/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradtune::compress::HWY_NAMESPACE {

// `codes` has room for a whole last group.
HWY_INLINE void pack_planes(uint8_t* codes, size_t n, int bits, uint8_t* planes) {
  const hn::CappedTag<uint8_t, kPlaneElements> d;
  std::fill(codes + n, codes + round_up(n, kPlaneElements), uint8_t{0});
  for (size_t begin = 0; begin < n; begin += kPlaneElements) {
    for (int bit = 0; bit < bits; ++bit, planes += sizeof(uint64_t)) {
      const auto of_bit = hn::Set(d, static_cast<uint8_t>(1 << bit));
      uint64_t word = 0;
      for (size_t lane = 0; lane < kPlaneElements; lane += hn::Lanes(d)) {
        const auto set = hn::TestBit(hn::LoadU(d, codes + begin + lane), of_bit);
        word |= bits_of(d, set) << lane;
      }
      std::memcpy(planes, &word, sizeof word);
    }
  }
}

HWY_INLINE void unpack_planes(const uint8_t* planes, size_t n, int bits, uint8_t* codes) {
  const hn::CappedTag<uint8_t, kPlaneElements> d;
  for (size_t begin = 0; begin < n; begin += kPlaneElements, planes += bits * sizeof(uint64_t)) {
    for (size_t lane = 0; lane < kPlaneElements; lane += hn::Lanes(d)) {
      auto code = hn::Zero(d);
      for (int bit = 0; bit < bits; ++bit) {
        // Reads the word in place if possible: a mask that is loaded right after its word was stored has to wait.
        const uint8_t* word = planes + bit * sizeof(uint64_t);
        uint64_t shifted;  // a mask is always loaded from 8 bytes
        if constexpr (hn::MaxLanes(d) < kPlaneElements) {
          std::memcpy(&shifted, word, sizeof shifted);
          shifted >>= lane;
          word = reinterpret_cast<const uint8_t*>(&shifted);
        }
        const auto set = hn::LoadMaskBits(d, word);
        code = hn::Or(code, hn::IfThenElseZero(set, hn::Set(d, static_cast<uint8_t>(1 << bit))));
      }
      hn::StoreU(code, d, codes + begin + lane);
    }
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradtune::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
