// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Products of numbers, and of sums of codes, with the Hadamard matrix H of order 1024, whose entries are 1 and -1.
// They consist of sums and differences of elements that are 1, 2, 4 ... 512 apart. Strides up to 128 are processed in
// groups of 256, which fit the registers of some processors. The last two strides are processed as the results are
// handed on, so values are stored only once in between. Compiled once per target by Highway, as simd-inl.h is.
#if defined(GRADTUNE_ENGINE_COMPRESS_ROTATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADTUNE_ENGINE_COMPRESS_ROTATION_INL_H_
#undef GRADTUNE_ENGINE_COMPRESS_ROTATION_INL_H_
#else
#define GRADTUNE_ENGINE_COMPRESS_ROTATION_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/compress/simd/simd-inl.h"
#include "engine/compress/thc/thc_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace gradtune::compress::HWY_NAMESPACE {

inline constexpr size_t kOrder = kRotated, kInGroup = kOrder / 4;

// --- Sums and differences. They are the same for every vector size: strides 1, 2, 4 and so on are processed one
// after the other.

// The sums and differences of elements that are `kStride` apart; kStride is smaller than a vector.
template <size_t kStride, class D>
HWY_INLINE hn::Vec<D> butterfly(D d, hn::Vec<D> v) {
  constexpr int kLog = std::countr_zero(kStride);
  const hn::RebindToUnsigned<D> du;
  const auto swapped = exchange<kStride>(d, v);
  // Lanes with the bit of the stride set get the element before minus their own. A product by 1 or -1 is exact.
  const auto is_second = hn::ShiftLeft<31>(hn::ShiftRight<kLog>(hn::Iota(du, 0)));
  const auto factor = hn::BitCast(d, hn::Xor(hn::BitCast(du, hn::Set(d, 1.0F)), is_second));
  return hn::MulAdd(v, factor, swapped);
}

// Processes all strides that are smaller than a vector.
template <class D>
HWY_INLINE hn::Vec<D> transform_lanes(D d, hn::Vec<D> v) {
  constexpr size_t kLanes = hn::MaxLanes(D());
  if constexpr (kLanes > 1) v = butterfly<1>(d, v);
  if constexpr (kLanes > 2) v = butterfly<2>(d, v);
  if constexpr (kLanes > 4) v = butterfly<4>(d, v);
  if constexpr (kLanes > 8) v = butterfly<8>(d, v);
  return v;
}

// Processes a stride and twice that stride, for one vector at each of four places.
template <class V>
HWY_INLINE void transform_four(V& a, V& b, V& c, V& e) {
  const V ab = hn::Add(a, b), a_b = hn::Sub(a, b), ce = hn::Add(c, e), c_e = hn::Sub(c, e);
  a = hn::Add(ab, ce);
  b = hn::Add(a_b, c_e);
  c = hn::Sub(ab, ce);
  e = hn::Sub(a_b, c_e);
}

using RotatedFloats = hn::CappedTag<float, 16>;

// Four consecutive vectors.
struct Four {
  hn::Vec<RotatedFloats> a, b, c, e;

  HWY_INLINE void transform() { transform_four(a, b, c, e); }

  HWY_INLINE void store(float* x) const {
    const RotatedFloats d;
    hn::Store(a, d, x);
    hn::Store(b, d, x + hn::Lanes(d));
    hn::Store(c, d, x + 2 * hn::Lanes(d));
    hn::Store(e, d, x + 3 * hn::Lanes(d));
  }
};

// Processes the strides from a vector to 128, for a group of 16 vectors.
HWY_INLINE void finish_group(Four a, Four b, Four c, Four e, float* x) {
  transform_four(a.a, b.a, c.a, e.a);
  transform_four(a.b, b.b, c.b, e.b);
  transform_four(a.c, b.c, c.c, e.c);
  transform_four(a.e, b.e, c.e, e.e);
  a.store(x);
  b.store(x + 64);
  c.store(x + 128);
  e.store(x + 192);
}

// Processes the last two strides of x, in which those up to 128 are done. Calls to(d, i, y) with vectors of H y from
// element i on: four of them, a group apart.
template <class To>
HWY_INLINE void transform_groups(const float* x, const To& to) {
  const RotatedFloats d;
  for (size_t i = 0; i < kInGroup; i += hn::Lanes(d)) {
    auto a = hn::Load(d, x + i), b = hn::Load(d, x + i + kInGroup);
    auto c = hn::Load(d, x + i + 2 * kInGroup), e = hn::Load(d, x + i + 3 * kInGroup);
    transform_four(a, b, c, e);
    to(d, i, a);
    to(d, i + kInGroup, b);
    to(d, i + 2 * kInGroup, c);
    to(d, i + 3 * kInGroup, e);
  }
}

// Processes the strides within four vectors.
template <class From>
HWY_INLINE Four four_from(const From& from, size_t i) {
  const RotatedFloats d;
  const size_t lanes = hn::Lanes(d);
  Four v{transform_lanes(d, from(d, i)), transform_lanes(d, from(d, i + lanes)),
         transform_lanes(d, from(d, i + 2 * lanes)), transform_lanes(d, from(d, i + 3 * lanes))};
  v.transform();
  return v;
}

// Processes the strides up to 128 of the group from `begin` on, and stores it in x.
template <class From>
HWY_INLINE void transform_group(const From& from, size_t begin, float* x) {
  const RotatedFloats d;
  constexpr size_t kLanes = hn::MaxLanes(RotatedFloats());
  if constexpr (kLanes == 16) {
    finish_group(four_from(from, begin), four_from(from, begin + 64), four_from(from, begin + 128),
                 four_from(from, begin + 192), x + begin);
    return;
  }
  for (size_t i = begin; i < begin + kInGroup; i += 4 * kLanes) four_from(from, i).store(x + i);
  size_t stride = 4 * kLanes;
  for (; 2 * stride < kInGroup; stride *= 4) {
    for (size_t first = begin; first < begin + kInGroup; first += 4 * stride) {
      for (size_t i = first; i < first + stride; i += kLanes) {
        auto a = hn::Load(d, x + i), b = hn::Load(d, x + i + stride);
        auto c = hn::Load(d, x + i + 2 * stride), e = hn::Load(d, x + i + 3 * stride);
        transform_four(a, b, c, e);
        hn::Store(a, d, x + i);
        hn::Store(b, d, x + i + stride);
        hn::Store(c, d, x + i + 2 * stride);
        hn::Store(e, d, x + i + 3 * stride);
      }
    }
  }
  for (size_t i = begin; stride < kInGroup && i < begin + stride; i += kLanes) {
    const auto a = hn::Load(d, x + i), b = hn::Load(d, x + i + stride);
    hn::Store(hn::Add(a, b), d, x + i);
    hn::Store(hn::Sub(a, b), d, x + i + stride);
  }
}

// Calls to(d, i, v) with the vectors v of H y from element i on; from(d, i) returns those of y.
template <class From, class To>
HWY_INLINE void transform(const From& from, const To& to) {
  HWY_ALIGN float x[kOrder];
  for (size_t begin = 0; begin < kOrder; begin += kInGroup) transform_group(from, begin, x);
  transform_groups(x, to);
}

// --- Products with sums of codes.

// The codes of a block in each payload. Sums over this many payloads, and the sums of these over the block, are exact
// in fp32 and in 32 bits.
struct BlockCodes {
  static constexpr size_t kMost = 64;
  std::span<const std::span<const std::byte>> payloads;
  size_t at;  // offset in each payload

  HWY_INLINE const uint8_t* of(size_t payload) const {
    return reinterpret_cast<const uint8_t*>(payloads[payload].data()) + at;
  }
};

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3

// Adds up 64 codes of all payloads into four vectors. Lane l of the first has the sum of codes 4 l to 4 l + 3; the
// others have the results of strides 1 and 2. Each widening product with 1 and -1 processes one stride.
HWY_INLINE Four code_sums(const BlockCodes& codes, size_t i, hn::Vec512<uint8_t>& largest) {
  const hn::Full512<uint8_t> d8;
  const auto pluses = _mm512_set1_epi16(0x0101), signs = _mm512_set1_epi16(static_cast<int16_t>(0xff01));
  auto sums = _mm512_setzero_si512(), differences = sums;
  for (size_t p = 0; p < codes.payloads.size(); ++p) {
    const auto some = hn::LoadU(d8, codes.of(p) + i);
    hwy::Prefetch(codes.of(p) + i + kOrder);
    largest = hn::Max(largest, some);
    sums = _mm512_add_epi16(sums, _mm512_maddubs_epi16(some.raw, pluses));
    differences = _mm512_add_epi16(differences, _mm512_maddubs_epi16(some.raw, signs));
  }
  const auto wide_pluses = _mm512_set1_epi32(0x00010001), wide_signs = _mm512_set1_epi32(static_cast<int>(0xffff0001));
  return {{_mm512_cvtepi32_ps(_mm512_madd_epi16(sums, wide_pluses))},
          {_mm512_cvtepi32_ps(_mm512_madd_epi16(differences, wide_pluses))},
          {_mm512_cvtepi32_ps(_mm512_madd_epi16(sums, wide_signs))},
          {_mm512_cvtepi32_ps(_mm512_madd_epi16(differences, wide_signs))}};
}

// Exchanges vectors with lanes of their blocks of 128 bits.
HWY_INLINE void exchange_lanes(Four& v) {
  const RotatedFloats d;
  const hn::RepartitionToWide<decltype(d)> d64;
  const auto ab = hn::BitCast(d64, hn::InterleaveLower(d, v.a, v.b));
  const auto ab_upper = hn::BitCast(d64, hn::InterleaveUpper(d, v.a, v.b));
  const auto ce = hn::BitCast(d64, hn::InterleaveLower(d, v.c, v.e));
  const auto ce_upper = hn::BitCast(d64, hn::InterleaveUpper(d, v.c, v.e));
  v.a = hn::BitCast(d, hn::InterleaveLower(d64, ab, ce));
  v.b = hn::BitCast(d, hn::InterleaveUpper(d64, ab, ce));
  v.c = hn::BitCast(d, hn::InterleaveLower(d64, ab_upper, ce_upper));
  v.e = hn::BitCast(d, hn::InterleaveUpper(d64, ab_upper, ce_upper));
}

// Exchanges vectors with these blocks.
HWY_INLINE void exchange_blocks(Four& v) {
  using V = hn::Vec<RotatedFloats>;
  const auto even = [](V a, V b) HWY_ATTR { return V{_mm512_shuffle_f32x4(a.raw, b.raw, 0x88)}; };
  const auto odd = [](V a, V b) HWY_ATTR { return V{_mm512_shuffle_f32x4(a.raw, b.raw, 0xdd)}; };
  const V ab = even(v.a, v.b), ab_odd = odd(v.a, v.b), ce = even(v.c, v.e), ce_odd = odd(v.c, v.e);
  v.a = even(ab, ce);
  v.b = even(ab_odd, ce_odd);
  v.c = odd(ab, ce);
  v.e = odd(ab_odd, ce_odd);
}

// Processes the strides up to 32 of 64 sums of codes. For strides 4 and 8 the vectors are exchanged with the lanes
// that have them; for strides 16 and 32 with the blocks. The second exchange also brings the other elements to their
// final lanes.
HWY_INLINE Four four_of_codes(const BlockCodes& codes, size_t i, hn::Vec512<uint8_t>& largest) {
  auto v = code_sums(codes, i, largest);
  exchange_lanes(v);
  v.transform();
  exchange_blocks(v);
  v.transform();
  return v;
}

// Calls to(d, i, v) with the vectors v of H c from element i on, where c are sums of codes. Returns true if no code
// is above `most`.
template <class To>
HWY_INLINE bool transform_codes(const BlockCodes& codes, uint8_t most, const To& to) {
  const hn::Full512<uint8_t> d8;
  HWY_ALIGN float x[kOrder];
  auto largest = hn::Zero(d8);
  for (size_t begin = 0; begin < kOrder; begin += kInGroup) {
    const Four first = four_of_codes(codes, begin, largest), second = four_of_codes(codes, begin + 64, largest);
    const Four third = four_of_codes(codes, begin + 128, largest), fourth = four_of_codes(codes, begin + 192, largest);
    finish_group(first, second, third, fourth, x + begin);
  }
  transform_groups(x, to);
  return hn::AllTrue(d8, hn::Eq(hn::Max(largest, hn::Set(d8, most)), hn::Set(d8, most)));
}

#else

template <class To>
HWY_INLINE bool transform_codes(const BlockCodes& codes, uint8_t most, const To& to) {
  const hn::CappedTag<uint16_t, 32> d16;
  const hn::Rebind<uint8_t, decltype(d16)> d8;
  HWY_ALIGN uint16_t sums[kOrder];
  auto largest = hn::Zero(d16);
  for (size_t i = 0; i < kOrder; i += hn::Lanes(d16)) {
    auto sum = hn::Zero(d16);
    for (size_t p = 0; p < codes.payloads.size(); ++p) {
      if (i % 64 == 0) hwy::Prefetch(codes.of(p) + i + kOrder);
      const auto wide = hn::PromoteTo(d16, hn::LoadU(d8, codes.of(p) + i));
      sum = hn::Add(sum, wide);
      largest = hn::Max(largest, wide);
    }
    hn::Store(sum, d16, sums + i);
  }
  transform(
      [&](auto d, size_t i) HWY_ATTR {
        const hn::RebindToSigned<decltype(d)> di;
        const hn::Rebind<uint16_t, decltype(d)> d16_of_float;
        return hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d16_of_float, sums + i)));
      },
      to);
  const auto limit = hn::Set(d16, uint16_t{most});
  return hn::AllTrue(d16, hn::Eq(hn::Max(largest, limit), limit));
}

#endif

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradtune::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
