// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/thc_kernels.h"

#include <bit>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/compress/thc_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "engine/compress/random-inl.h"
#include "engine/compress/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradtune::compress::HWY_NAMESPACE {

constexpr size_t kOrder = kRotated;

// Sums and differences of elements that are `kStride` apart, kStride smaller than a vector.
template <size_t kStride, class D>
HWY_INLINE hn::Vec<D> butterfly(D d, hn::Vec<D> v) {
  constexpr int kLog = std::countr_zero(kStride);
  const hn::RebindToUnsigned<D> du;
  auto swapped = v;
  if constexpr (kStride == 1) swapped = hn::Reverse2(d, v);
  if constexpr (kStride == 2) swapped = hn::Reverse2(d, hn::Reverse4(d, v));
  if constexpr (kStride == 4) swapped = hn::Reverse4(d, hn::Reverse8(d, v));
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kStride == 8) swapped = hn::ConcatLowerUpper(d, v, v);  // of 16 lanes
#endif
  // Where the bit of the stride is set it is what stands before minus this: this with the other sign, added.
  const auto is_second = hn::ShiftLeft<31>(hn::And(hn::ShiftRight<kLog>(hn::Iota(du, 0)), hn::Set(du, 1)));
  return hn::Add(swapped, hn::BitCast(d, hn::Xor(hn::BitCast(du, v), is_second)));
}

// x = H x. The sums are the same for every size of vectors: those of strides 1, 2, 4 and so on, one after the other.
template <class D>
HWY_INLINE void transform_with(D d, float* x) {
  constexpr size_t kLanes = hn::MaxLanes(D());
  if constexpr (kLanes > 1) {
    for (size_t i = 0; i < kOrder; i += kLanes) {
      auto v = butterfly<1>(d, hn::Load(d, x + i));
      if constexpr (kLanes > 2) v = butterfly<2>(d, v);
      if constexpr (kLanes > 4) v = butterfly<4>(d, v);
      if constexpr (kLanes > 8) v = butterfly<8>(d, v);
      hn::Store(v, d, x + i);
    }
  }
  size_t stride = kLanes;
  for (; 2 * stride < kOrder; stride *= 4) {  // two strides at once
    for (size_t begin = 0; begin < kOrder; begin += 4 * stride) {
      for (size_t i = begin; i < begin + stride; i += kLanes) {
        const auto a = hn::Load(d, x + i), b = hn::Load(d, x + i + stride);
        const auto c = hn::Load(d, x + i + 2 * stride), e = hn::Load(d, x + i + 3 * stride);
        const auto ab = hn::Add(a, b), a_b = hn::Sub(a, b), ce = hn::Add(c, e), c_e = hn::Sub(c, e);
        hn::Store(hn::Add(ab, ce), d, x + i);
        hn::Store(hn::Add(a_b, c_e), d, x + i + stride);
        hn::Store(hn::Sub(ab, ce), d, x + i + 2 * stride);
        hn::Store(hn::Sub(a_b, c_e), d, x + i + 3 * stride);
      }
    }
  }
  if (stride == kOrder) return;
  for (size_t i = 0; i < stride; i += kLanes) {
    const auto a = hn::Load(d, x + i), b = hn::Load(d, x + i + stride);
    hn::Store(hn::Add(a, b), d, x + i);
    hn::Store(hn::Sub(a, b), d, x + i + stride);
  }
}

HWY_INLINE void transform(float* x) { transform_with(hn::CappedTag<float, 16>(), x); }

// x = D x * factor.
HWY_INLINE void change_signs(float* x, const RotationSigns& signs, float factor) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  for (size_t word = 0; word < kOrder / 32; ++word) {
    for (size_t lane = 0; lane < 32; lane += hn::Lanes(d)) {
      const auto place = hn::Sub(hn::Set(du, 31 - static_cast<uint32_t>(lane)), hn::Iota(du, 0));
      const auto sign = hn::And(hn::Shl(hn::Set(du, signs[word]), place), hn::Set(du, 0x80000000U));
      float* const at = x + word * 32 + lane;
      const auto scaled = hn::Mul(hn::Load(d, at), hn::Set(d, factor));
      hn::Store(hn::BitCast(d, hn::Xor(hn::BitCast(du, scaled), sign)), d, at);
    }
  }
}

// Before the sums, which then do not overflow. It is a power of two, so nothing is rounded.
constexpr float kNorm = 1.0F / 32;

// x = D H x / 32.
HWY_INLINE void rotate_back(float* x, const RotationSigns& signs) {
  const hn::CappedTag<float, 16> d;
  for (size_t i = 0; i < kOrder; i += hn::Lanes(d)) {
    hn::Store(hn::Mul(hn::Load(d, x + i), hn::Set(d, kNorm)), d, x + i);
  }
  transform(x);
  change_signs(x, signs, 1);
}

// The codes of a tile of y, and in its place what they stand for.
HWY_INLINE void quantise(const ThcLevels& of, const uint16_t* random, float* y, uint8_t* codes) {
  if (of.unit == 0) {
    std::fill_n(y, kTile, 0.0F);
    std::fill_n(codes, kTile, uint8_t{0});
    return;
  }
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<uint16_t, decltype(d)> d16;
  const hn::Rebind<uint8_t, decltype(d)> d8;
  const float per_unit = 1 / of.unit;
  const auto most = hn::Set(d, static_cast<float>(of.levels));
  for (size_t i = 0; i < kTile; i += hn::Lanes(d)) {
    const auto above = hn::Mul(hn::Sub(hn::LoadU(d, y + i), hn::Set(d, of.low)), hn::Set(d, per_unit));
    const auto inside = hn::Max(hn::Min(above, most), hn::Zero(d));
    const auto bits = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d16, random + i)));
    const auto draw = hn::Mul(hn::Add(bits, hn::Set(d, 0.5F)), hn::Set(d, 1.0F / 65536));
    const auto code = hn::Min(hn::Floor(hn::Add(inside, draw)), most);
    hn::StoreU(hn::DemoteTo(d8, hn::ConvertTo(di, code)), d8, codes + i);
    hn::StoreU(hn::Add(hn::Mul(code, hn::Set(d, of.unit)), hn::Set(d, of.low)), d, y + i);
  }
}

void encode_block(const EncodeRun& block, const ThcTarget& to) {
  const EncodeRun of = block;  // what the compiler keeps in registers no store can change
  HWY_ALIGN float x[kOrder];
  for_vectors(of.n, [&](auto d, size_t i) HWY_ATTR {
    hn::StoreU(hn::Mul(load_p(d, of.gradient, of.residual, i), hn::Set(d, of.scale)), d, x + i);
  });
  std::fill(x + of.n, x + kOrder, 0.0F);
  change_signs(x, *to.signs, kNorm);
  transform(x);
  RandomTile random(to.random);
  for (size_t begin = 0; begin < kOrder; begin += kTile) {
    const uint16_t* const draws = random.bits(static_cast<uint64_t>(to.first_element) + begin, kTile);
    quantise(to.levels, draws, x + begin, to.codes + begin);
  }
  if (of.residual_next == nullptr) return;
  rotate_back(x, *to.signs);
  for_vectors(of.n, [&](auto d, size_t i) HWY_ATTR {
    const auto p = load_p(d, of.gradient, of.residual, i);
    const auto sent = hn::Mul(hn::LoadU(d, x + i), hn::Set(d, of.error_scale));
    auto missed = hn::Sub(hn::Mul(p, hn::Set(d, of.unsent_factor)), sent);
    if (of.add_to_residual_next) missed = hn::Add(hn::LoadU(d, of.residual_next + i), missed);
    hn::StoreU(missed, d, of.residual_next + i);
  });
}

bool decode_block(const ThcDecode& block) {
  HWY_ALIGN float x[kOrder];
  const auto codes = static_cast<float>(block.payloads.size() * static_cast<size_t>(block.summed));
  const float low = codes * block.levels.low;
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<uint8_t, decltype(d)> d8;
  auto largest = hn::Zero(di);
  for (size_t i = 0; i < kOrder; i += hn::Lanes(d)) {
    auto sum = hn::Zero(di);
    for (const std::span<const std::byte>& payload : block.payloads) {
      const auto* const from = reinterpret_cast<const uint8_t*>(payload.data()) + block.codes_at;
      const auto one = hn::PromoteTo(di, hn::LoadU(d8, from + i));
      sum = hn::Add(sum, one);
      largest = hn::Max(largest, one);
    }
    const auto value = hn::Add(hn::Mul(hn::ConvertTo(d, sum), hn::Set(d, block.levels.unit)), hn::Set(d, low));
    hn::StoreU(value, d, x + i);
  }
  if (hn::GetLane(hn::MaxOfLanes(di, largest)) > block.levels.levels * block.summed) return false;
  if (block.levels.unit == 0) std::fill_n(x, kOrder, 0.0F);
  rotate_back(x, *block.signs);
  for_vectors(block.n, [&](auto v, size_t i) HWY_ATTR {
    auto value = hn::LoadU(v, x + i);
    if (block.accumulate) value = hn::Add(hn::LoadU(v, block.out + i), value);
    hn::StoreU(value, v, block.out + i);
  });
  return true;
}

double norm_of_block(const float* gradient, const float* residual, size_t n) {
  return euclidean_norm(gradient, residual, n);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradtune::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradtune::compress {

HWY_EXPORT(encode_block);
HWY_EXPORT(decode_block);
HWY_EXPORT(norm_of_block);

void encode_thc(const EncodeRun& block, const ThcTarget& to) { HWY_DYNAMIC_DISPATCH(encode_block)(block, to); }
bool decode_thc(const ThcDecode& block) { return HWY_DYNAMIC_DISPATCH(decode_block)(block); }
double norm_of(const float* gradient, const float* residual, size_t n) {
  return HWY_DYNAMIC_DISPATCH(norm_of_block)(gradient, residual, n);
}

}  // namespace gradtune::compress
#endif
