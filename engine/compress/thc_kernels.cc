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
  const auto swapped = exchange<kStride>(d, v);
  // Where the bit of the stride is set it is what stands before minus this. A product by 1 or -1 is exact.
  const auto is_second = hn::ShiftLeft<31>(hn::ShiftRight<kLog>(hn::Iota(du, 0)));
  const auto factor = hn::BitCast(d, hn::Xor(hn::BitCast(du, hn::Set(d, 1.0F)), is_second));
  return hn::MulAdd(v, factor, swapped);
}

// The butterflies of the strides that are smaller than a vector.
template <class D>
HWY_INLINE hn::Vec<D> transform_lanes(D d, hn::Vec<D> v) {
  constexpr size_t kLanes = hn::MaxLanes(D());
  if constexpr (kLanes > 1) v = butterfly<1>(d, v);
  if constexpr (kLanes > 2) v = butterfly<2>(d, v);
  if constexpr (kLanes > 4) v = butterfly<4>(d, v);
  if constexpr (kLanes > 8) v = butterfly<8>(d, v);
  return v;
}

// Those of `stride` and of twice that, for one vector in each of four places.
template <class D>
HWY_INLINE void transform_four(D d, hn::Vec<D> a, hn::Vec<D> b, hn::Vec<D> c, hn::Vec<D> e, float* x, size_t stride) {
  const auto ab = hn::Add(a, b), a_b = hn::Sub(a, b), ce = hn::Add(c, e), c_e = hn::Sub(c, e);
  hn::Store(hn::Add(ab, ce), d, x);
  hn::Store(hn::Add(a_b, c_e), d, x + stride);
  hn::Store(hn::Sub(ab, ce), d, x + 2 * stride);
  hn::Store(hn::Sub(a_b, c_e), d, x + 3 * stride);
}

// x = H y, where from(d, i) is y from element i on, which may be made of x there. The sums are the same for every size of
// vectors: those of strides 1, 2, 4 and so on, one after the other.
template <class From>
HWY_INLINE void transform(const From& from, float* x) {
  const hn::CappedTag<float, 16> d;
  constexpr size_t kLanes = hn::MaxLanes(decltype(d)());
  for (size_t i = 0; i < kOrder; i += 4 * kLanes) {
    const auto a = transform_lanes(d, from(d, i)), b = transform_lanes(d, from(d, i + kLanes));
    const auto c = transform_lanes(d, from(d, i + 2 * kLanes)), e = transform_lanes(d, from(d, i + 3 * kLanes));
    transform_four(d, a, b, c, e, x + i, kLanes);
  }
  size_t stride = 4 * kLanes;
  for (; 2 * stride < kOrder; stride *= 4) {
    for (size_t begin = 0; begin < kOrder; begin += 4 * stride) {
      for (size_t i = begin; i < begin + stride; i += kLanes) {
        const auto a = hn::Load(d, x + i), b = hn::Load(d, x + i + stride);
        const auto c = hn::Load(d, x + i + 2 * stride), e = hn::Load(d, x + i + 3 * stride);
        transform_four(d, a, b, c, e, x + i, stride);
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

// D v, for the elements from i on.
template <class D>
HWY_INLINE hn::Vec<D> change_signs(D d, const RotationSigns& signs, size_t i, hn::Vec<D> v) {
  const auto changes = mask_at(d, reinterpret_cast<const uint8_t*>(signs.data()), i);
  return hn::IfThenElse(changes, hn::Neg(v), v);
}

// Before the sums, which then do not overflow. It is a power of two, so nothing is rounded.
constexpr float kNorm = 1.0F / 32;

// The codes of a tile of y, and in its place, where that is wanted, what they stand for.
HWY_INLINE void quantise(const ThcLevels of, const uint16_t* random, bool wanted, float* y, uint8_t* codes) {
  if (of.unit == 0) {
    std::fill_n(y, kOrder, 0.0F);
    std::fill_n(codes, kOrder, uint8_t{0});
    return;
  }
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<uint16_t, decltype(d)> d16;
  const hn::Rebind<uint8_t, decltype(d)> d8;
  const float per_unit = 1 / of.unit;
  const auto most = hn::Set(d, static_cast<float>(of.levels));
  for (size_t i = 0; i < kOrder; i += hn::Lanes(d)) {
    const auto above = hn::Mul(hn::Sub(hn::LoadU(d, y + i), hn::Set(d, of.low)), hn::Set(d, per_unit));
    const auto inside = hn::Max(hn::Min(above, most), hn::Zero(d));
    const auto code = round_at_random(d, inside, hn::PromoteTo(di, hn::LoadU(d16, random + i)));
    hn::StoreU(hn::U8FromU32(hn::BitCast(hn::RebindToUnsigned<decltype(d)>(), code)), d8, codes + i);
    if (!wanted) continue;
    hn::StoreU(hn::Add(hn::Mul(hn::ConvertTo(d, code), hn::Set(d, of.unit)), hn::Set(d, of.low)), d, y + i);
  }
}

// The codes of a block of at most kOrder elements, and its errors where they are kept.
HWY_INLINE void encode_block(const EncodeRun& block, const ThcBlock& shared, const uint16_t* random, uint8_t* codes,
                             float* error) {
  EncodeRun of = block;  // what the compiler keeps in registers no store can change
  HWY_ALIGN float padded[kOrder];
  if (of.n < kOrder) {
    for_vectors(of.n,
                [&](auto d, size_t i) HWY_ATTR { hn::StoreU(load_p(d, of.gradient, of.residual, i), d, padded + i); });
    std::fill(padded + of.n, padded + kOrder, 0.0F);
    of.gradient = padded;
    of.residual = nullptr;
  }
  HWY_ALIGN float x[kOrder];
  const RotationSigns& signs = shared.signs;
  const auto rotated = [&](auto d, size_t i) HWY_ATTR {
    prefetch_p(d, of.gradient, of.residual, i + kOrder);
    const auto sent = hn::Mul(load_p(d, of.gradient, of.residual, i), hn::Set(d, of.scale));
    return change_signs(d, signs, i, hn::Mul(sent, hn::Set(d, kNorm)));
  };
  transform(rotated, x);
  quantise(shared.levels, random, error != nullptr, x, codes);
  if (error == nullptr) return;
  transform([&](auto d, size_t i) HWY_ATTR { return hn::Mul(hn::Load(d, x + i), hn::Set(d, kNorm)); }, x);
  for_vectors(of.n, [&](auto d, size_t i) HWY_ATTR {
    const auto p = load_p(d, of.gradient, of.residual, i);
    const auto sent = hn::Mul(change_signs(d, signs, i, hn::LoadU(d, x + i)), hn::Set(d, of.error_scale));
    auto missed = hn::Sub(hn::Mul(p, hn::Set(d, of.unsent_factor)), sent);
    if (of.add_to_residual_next) missed = hn::Add(hn::LoadU(d, error + i), missed);
    hn::StoreU(missed, d, error + i);
  });
}

void encode_run(const EncodeRun& run, const ThcTarget& to) {
  Output<uint8_t, kOrder> codes(to.codes, to.stream);
  Output<float, kOrder> errors(run.residual_next, to.stream && !run.add_to_residual_next);
  RandomTile<kOrder> random(to.random);
  for (size_t b = 0; b < to.blocks.size(); ++b) {
    const size_t begin = b * kOrder;
    EncodeRun block = run;
    block.gradient = run.gradient + begin;
    block.residual = offset(run.residual, begin);
    block.n = std::min(kOrder, run.n - begin);
    encode_block(block, to.blocks[b], random.bits(static_cast<uint64_t>(to.first_element) + begin, kOrder),
                 codes.tile(begin), errors.tile(begin));
    codes.finish_tile(kOrder);
    errors.finish_tile(block.n);
  }
}

// The sums of so many payloads fit 16 bits.
constexpr size_t kFitting = 256;

// The sums of the codes of as many payloads, added to `sums` unless they are the first; returns the largest code.
HWY_INLINE uint32_t add_codes(std::span<const std::span<const std::byte>> payloads, size_t codes_at, bool are_first,
                              float* sums) {
  const hn::CappedTag<uint16_t, 32> d16;
  const hn::Rebind<uint8_t, decltype(d16)> d8;
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<uint16_t, decltype(d)> d16_of_float;
  HWY_ALIGN uint16_t tile[kOrder];
  auto largest = hn::Zero(d16);
  for (size_t i = 0; i < kOrder; i += hn::Lanes(d16)) {
    auto sum = hn::Zero(d16), most = hn::Zero(d16);
    for (const std::span<const std::byte>& payload : payloads) {
      const auto* const codes = reinterpret_cast<const uint8_t*>(payload.data()) + codes_at + i;
      if (i % 64 == 0) hwy::Prefetch(codes + kOrder);
      const auto wide = hn::PromoteTo(d16, hn::LoadU(d8, codes));
      sum = hn::Add(sum, wide);
      most = hn::Max(most, wide);
    }
    hn::Store(sum, d16, tile + i);
    largest = hn::Max(largest, most);
  }
  for (size_t i = 0; i < kOrder; i += hn::Lanes(d)) {
    const auto sum = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d16_of_float, tile + i)));
    hn::Store(are_first ? sum : hn::Add(hn::Load(d, sums + i), sum), d, sums + i);
  }
  HWY_ALIGN uint16_t lanes[32];
  hn::Store(largest, d16, lanes);
  return *std::max_element(lanes, lanes + hn::Lanes(d16));
}

bool decode_run(const ThcDecode& run) {
  SumOutput out(run.out, run.stream, kOrder);
  bool good = true;
  for (size_t b = 0; b < run.blocks.size(); ++b) {
    const size_t begin = b * kOrder, n = std::min(kOrder, run.n - begin);
    const auto& [signs, levels] = run.blocks[b];
    HWY_ALIGN float x[kOrder];
    const size_t payloads = run.payloads.size();
    uint32_t largest = 0;
    for (size_t first = 0; first < payloads; first += kFitting) {
      const auto some = run.payloads.subspan(first, std::min(kFitting, payloads - first));
      largest = std::max(largest, add_codes(some, run.codes_at + begin, first == 0, x));
    }
    good &= largest <= static_cast<uint32_t>(levels.levels * run.summed);
    const float unit = levels.unit;
    const float low = static_cast<float>(payloads * static_cast<size_t>(run.summed)) * levels.low;
    const auto values = [&](auto d, size_t i) HWY_ATTR {
      const auto value = hn::Add(hn::Mul(hn::Load(d, x + i), hn::Set(d, unit)), hn::Set(d, low));
      return hn::Mul(value, hn::Set(d, kNorm));
    };
    transform(values, x);
    const float* const old = run.accumulate ? run.out + begin : nullptr;
    const Place sums = out.pass(begin, /*is_last=*/true);
    for_vectors(n, [&](auto d, size_t i) HWY_ATTR {
      auto value = change_signs(d, signs, i, hn::LoadU(d, x + i));
      if (old != nullptr) value = hn::Add(hn::LoadU(d, old + i), value);
      sums.store(value, d, i);
    });
    out.finish_tile(n);
  }
  return good;
}

double norm_of_block(const float* gradient, const float* residual, size_t n) {
  return euclidean_norm(gradient, residual, n);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradtune::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradtune::compress {

HWY_EXPORT(encode_run);
HWY_EXPORT(decode_run);
HWY_EXPORT(norm_of_block);

void encode_thc(const EncodeRun& run, const ThcTarget& to) { HWY_DYNAMIC_DISPATCH(encode_run)(run, to); }
bool decode_thc(const ThcDecode& run) { return HWY_DYNAMIC_DISPATCH(decode_run)(run); }
double norm_of(const float* gradient, const float* residual, size_t n) {
  return HWY_DYNAMIC_DISPATCH(norm_of_block)(gradient, residual, n);
}

}  // namespace gradtune::compress
#endif
