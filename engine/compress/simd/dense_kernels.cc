// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/simd/dense_kernels.h"

#include <array>

#include "engine/compress/shared.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/compress/simd/dense_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "engine/compress/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradtune::compress::HWY_NAMESPACE {

// Each wire type defines how to store the codes of a vector and how to load their values; both work for any number of
// lanes. Rounding is to nearest even.

struct WireF32 {
  using Code = float;
  template <class D, class V>
  static HWY_INLINE void store(D d, V v, float* to) {
    hn::StoreU(v, d, to);
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const float* from) {
    return hn::LoadU(d, from);
  }
};

struct WireBF16 {
  using Code = uint16_t;
  template <class D, class V>
  static HWY_INLINE void store(D d, V v, uint16_t* to) {
    const hn::RebindToSigned<D> di;
    const hn::Rebind<uint16_t, D> d16;
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, bf16_bits(d, v))), d16, to);
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const uint16_t* from) {
    const hn::RebindToUnsigned<D> du;
    const auto code = hn::PromoteTo(du, hn::LoadU(hn::Rebind<uint16_t, D>(), from));
    return hn::BitCast(d, hn::ShiftLeft<16>(code));
  }
};

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)

struct WireF16 {
  using Code = uint16_t;
  template <class D, class V>
  static HWY_INLINE void store(D d, V v, uint16_t* to) {
    const hn::Rebind<hwy::float16_t, D> d16;
    hn::StoreU(hn::DemoteTo(d16, v), d16, reinterpret_cast<hwy::float16_t*>(to));
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const uint16_t* from) {
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(from)));
  }
};

#else

// A conversion without an instruction for it. Subnormals are rounded, and read, by adding a number whose last place
// is theirs.
struct WireF16 {
  using Code = uint16_t;
  template <class D, class V>
  static HWY_INLINE void store(D d, V v, uint16_t* to) {
    const hn::RebindToSigned<D> di;
    const hn::Rebind<uint16_t, D> d16;
    const auto bits = abs_bits(d, v);
    const auto high = hn::ShiftRight<13>(bits);
    const auto sign = hn::And(hn::ShiftRight<16>(hn::BitCast(di, v)), hn::Set(di, 0x8000));
    const auto half = hn::Set(d, 0.5F);
    const auto subnormal = hn::Sub(hn::BitCast(di, hn::Add(hn::BitCast(d, bits), half)), hn::BitCast(di, half));
    const auto odd = hn::And(high, hn::Set(di, 1));
    // Moves the exponent's bias from 127 to 15, and rounds.
    const auto up = hn::Add(bits, hn::Add(odd, hn::Set(di, 0xfff - (112 << 23))));
    const auto normal = hn::Min(hn::ShiftRight<13>(up), hn::Set(di, 0x7c00));
    const auto nan = hn::Or(hn::Set(di, 0x7e00), hn::And(high, hn::Set(di, 0x3ff)));
    auto code = hn::IfThenElse(hn::Lt(bits, hn::Set(di, 113 << 23)), subnormal, normal);
    code = hn::IfThenElse(hn::Gt(bits, hn::Set(di, 0x7f800000)), nan, code);
    hn::StoreU(hn::DemoteTo(d16, hn::Or(code, sign)), d16, to);
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const uint16_t* from) {
    const hn::RebindToSigned<D> di;
    const auto code = hn::PromoteTo(di, hn::LoadU(hn::Rebind<uint16_t, D>(), from));
    const auto sign = hn::ShiftLeft<16>(hn::And(code, hn::Set(di, 0x8000)));
    const auto magnitude = hn::And(code, hn::Set(di, 0x7fff));
    const auto bits = hn::ShiftLeft<13>(magnitude);
    const auto smallest = hn::Set(di, 113 << 23);
    const auto subnormal = hn::Sub(hn::BitCast(d, hn::Add(bits, smallest)), hn::BitCast(d, smallest));
    const auto normal = hn::Add(bits, hn::Set(di, 112 << 23));
    const auto quiet = hn::IfThenElseZero(hn::Gt(magnitude, hn::Set(di, 0x7c00)), hn::Set(di, 1 << 22));
    const auto not_finite = hn::Or(hn::Add(normal, hn::Set(di, 112 << 23)), quiet);
    auto value = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, 0x400)), hn::BitCast(di, subnormal), normal);
    value = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, 0x7c00)), value, not_finite);
    return hn::BitCast(d, hn::Or(value, sign));
  }
};

#endif

// Jobs are passed by value, since the compiler then knows that no store changes what it keeps in registers.

template <class Wire>
uint32_t encode(const EncodeRun job, std::byte* to, bool stream) {
  using Code = typename Wire::Code;
  Output<Code> codes(reinterpret_cast<Code*>(to), stream);
  Output<float> errors(job.residual_next, stream && !job.add_to_residual_next);
  uint32_t largest = 0;
  for (size_t begin = 0; begin < job.n; begin += kTile) {
    const size_t count = std::min(kTile, job.n - begin);
    const float* gradient = job.gradient + begin;
    const float* residual = offset(job.residual, begin);
    Code* code = codes.tile(begin);
    float* error = errors.tile(begin);
    const uint32_t seen = largest_of(count, [&](auto d, size_t i) HWY_ATTR {
      prefetch_behind(d, gradient, residual, i);
      const auto sent = hn::Mul(load_p(d, gradient, residual, i), hn::Set(d, job.scale));
      Wire::store(d, sent, code + i);
      if (error != nullptr) {
        auto missed = hn::Mul(hn::Sub(sent, Wire::load(d, code + i)), hn::Set(d, job.error_scale));
        if (job.add_to_residual_next) missed = hn::Add(hn::LoadU(d, error + i), missed);
        hn::StoreU(missed, d, error + i);
      }
      return abs_bits(d, sent);
    });
    largest = std::max(largest, seen);
    codes.finish_tile(count);
    errors.finish_tile(count);
  }
  return largest;
}

// to = (old == nullptr ? 0 : old) + the values of kCount payloads, in their order.
template <size_t kCount, class Wire>
HWY_INLINE void add_values(const std::array<const typename Wire::Code*, kAtOnce> codes, const float* old,
                           const Place to, size_t n) {
  for_vectors(n, [&](auto d, size_t i) HWY_ATTR {
    for (size_t p = 0; p < kCount; ++p) prefetch(d, codes[p], i + kAhead);
    auto sum = Wire::load(d, codes[0] + i);
    if (old != nullptr) sum = hn::Add(hn::LoadU(d, old + i), sum);
    for (size_t p = 1; p < kCount; ++p) sum = hn::Add(sum, Wire::load(d, codes[p] + i));
    to.store(sum, d, i);
  });
}

template <class Wire>
void decode(const DenseDecode job) {
  using Code = typename Wire::Code;
  SumOutput out(job.out, job.stream, kTile);
  const size_t payloads = job.payloads.size(), whole = tile_of(payloads);
  for (size_t begin = 0; begin < job.n; begin += whole) {
    const size_t count = std::min(whole, job.n - begin);
    const float* old = job.accumulate ? job.out + begin : nullptr;
    for (size_t first = 0; first < payloads;) {
      const size_t some = at_once(payloads - first);
      std::array<const Code*, kAtOnce> codes{};
      for (size_t p = 0; p < some; ++p) {
        codes[p] = reinterpret_cast<const Code*>(job.payloads[first + p].data()) + job.first + begin;
      }
      first += some;
      const Place to = out.pass(begin, first == payloads);
      with_count(some, [&](auto of) HWY_ATTR { add_values<of(), Wire>(codes, old, to, count); });
      old = to.to;
    }
    out.finish_tile(count);
  }
}

uint32_t encode_f32(const EncodeRun& run, std::byte* codes, bool stream) { return encode<WireF32>(run, codes, stream); }
uint32_t encode_bf16(const EncodeRun& run, std::byte* codes, bool stream) {
  return encode<WireBF16>(run, codes, stream);
}
uint32_t encode_f16(const EncodeRun& run, std::byte* codes, bool stream) { return encode<WireF16>(run, codes, stream); }
void decode_f32(const DenseDecode& job) { decode<WireF32>(job); }
void decode_bf16(const DenseDecode& job) { decode<WireBF16>(job); }
void decode_f16(const DenseDecode& job) { decode<WireF16>(job); }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradtune::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradtune::compress {

HWY_EXPORT(encode_f32);
HWY_EXPORT(encode_bf16);
HWY_EXPORT(encode_f16);
HWY_EXPORT(decode_f32);
HWY_EXPORT(decode_bf16);
HWY_EXPORT(decode_f16);

uint32_t encode_dense(core::DType wire, const EncodeRun& run, std::byte* codes, bool stream) {
  switch (wire) {
    case core::DType::f32: return HWY_DYNAMIC_DISPATCH(encode_f32)(run, codes, stream);
    case core::DType::bf16: return HWY_DYNAMIC_DISPATCH(encode_bf16)(run, codes, stream);
    case core::DType::f16: return HWY_DYNAMIC_DISPATCH(encode_f16)(run, codes, stream);
    case core::DType::f64: break;
  }
  core::check(false, "no payload is of double precision");
  return 0;
}

void decode_dense(core::DType wire, const DenseDecode& block) {
  switch (wire) {
    case core::DType::f32: return HWY_DYNAMIC_DISPATCH(decode_f32)(block);
    case core::DType::bf16: return HWY_DYNAMIC_DISPATCH(decode_bf16)(block);
    case core::DType::f16: return HWY_DYNAMIC_DISPATCH(decode_f16)(block);
    case core::DType::f64: break;
  }
  core::check(false, "no payload is of double precision");
}

}  // namespace gradtune::compress
#endif
