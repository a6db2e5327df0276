// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Turns numbers into codes of 8 bits or fewer, and codes into numbers, in the formats of block_codes_kernels.h.
#if defined(GRADTUNE_ENGINE_COMPRESS_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADTUNE_ENGINE_COMPRESS_CODES_INL_H_
#undef GRADTUNE_ENGINE_COMPRESS_CODES_INL_H_
#else
#define GRADTUNE_ENGINE_COMPRESS_CODES_INL_H_
#endif

#include <bit>
#include <cmath>

#include "engine/compress/codes/block_codes_kernels.h"
#include "engine/compress/simd/random-inl.h"
#include "engine/compress/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradtune::compress::HWY_NAMESPACE {

// Each of the following is a format. `unit` makes the unit of a block from the norm that is sent. `encode` makes the
// code of x = element / unit, with 16 random bits, and sets `value` to the value of that code. A format also has the
// code of 0, and the largest code without its sign. Except for rounding, no x exceeds the largest value. `decoded`
// makes elements from their codes and from step(unit).

// The common part of most formats; they have the `value` of a code.
template <class Codes>
class Bytes {
 public:
  static constexpr int kBits = 8;

  template <class D>
  HWY_INLINE hn::Vec<D> unit(D d, hn::Vec<D> norm) const {
    return hn::Div(norm, hn::Set(d, codes().largest_value()));
  }
  float step(float unit) const { return unit; }
  template <class D>
  HWY_INLINE hn::Vec<D> decoded(D d, const uint8_t* from, size_t i, hn::Vec<D> step) const {
    const hn::Rebind<uint8_t, D> d8;
    const auto code = hn::PromoteTo(hn::RebindToSigned<D>(), hn::LoadU(d8, from + i));
    return hn::Mul(codes().value(d, code), step);
  }

 private:
  const Codes& codes() const { return static_cast<const Codes&>(*this); }
};

// Codes count from the lowest integer; `zero` is the code of 0. With one bit there is none, 0 lies between both.
template <bool kIsRandom>
class Integers : public Bytes<Integers<kIsRandom>> {
 public:
  static constexpr bool kRandom = kIsRandom;

  explicit Integers(int bits)
      : high_(bits == 1 ? 1 : (1 << (bits - 1)) - 1),
        low_(bits == 1 ? 0 : -high_),
        shift_(bits == 1 ? 0.5F : 0.0F),
        zero_(shift_ - static_cast<float>(low_)) {}

  float largest_value() const { return static_cast<float>(high_) - shift_; }
  int32_t code_mask() const { return 0xff; }
  int32_t zero_code() const { return -low_; }
  int32_t largest_code() const { return high_ - low_; }

  template <class D, class V, class R>
  HWY_INLINE hn::Vec<hn::RebindToSigned<D>> encode(D d, V x, R random, V& value) const {
    const hn::RebindToSigned<D> di;
    if constexpr (kRandom) {
      const auto drawn = hn::Sub(round_at_random(d, x, random, shift_), hn::Set(di, low_));
      const auto code = hn::Min(hn::Max(drawn, hn::Zero(di)), hn::Set(di, high_ - low_));
      value = this->value(d, code);
      return code;
    } else {
      constexpr float kPlace = 0x1.8p23F;  // its last place is that of integers
      const auto sum = hn::Add(x, hn::Set(d, kPlace));
      value = hn::Sub(sum, hn::Set(d, kPlace));
      return hn::Sub(hn::BitCast(di, sum), hn::Set(di, std::bit_cast<int32_t>(kPlace) + low_));
    }
  }

  template <class D, class C>
  HWY_INLINE hn::Vec<D> value(D d, C code) const {
    return hn::Sub(hn::ConvertTo(d, code), hn::Set(d, zero_));
  }

 private:
  int32_t high_, low_;
  float shift_, zero_;
};

// Sign, exponent, and this many bits of mantissa; the largest code is that of the largest value.
template <int kMantissa, int32_t kLargestCode>
class Floats : public Bytes<Floats<kMantissa, kLargestCode>> {
 public:
  static constexpr bool kRandom = false;
  explicit Floats(int /*bits*/) {}

  float largest_value() const {
    const int exponent = (kLargestCode >> kMantissa) - kBias;
    return std::ldexp(1 + static_cast<float>(kLargestCode & (kOne - 1)) / kOne, exponent);
  }
  int32_t code_mask() const { return 0x7f; }
  int32_t zero_code() const { return 0; }
  int32_t largest_code() const { return kLargestCode; }

  // By adding a power of two whose last place is that of the code: 2^(23 - kMantissa) times that of |x|, or of the
  // smallest normal number. So many last places are the mantissa with its first bit, if it has one.
  template <class D, class V, class R>
  HWY_INLINE hn::Vec<hn::RebindToSigned<D>> encode(D d, V x, R /*random*/, V& value) const {
    const hn::RebindToSigned<D> di;
    const auto bits = abs_bits(d, x);
    const auto power = hn::Max(hn::And(bits, hn::Set(di, 0x7f800000)), hn::Set(di, kSmallest));
    const auto added = hn::Add(power, hn::Set(di, kShift << 23));
    const auto sum = hn::Add(hn::BitCast(d, bits), hn::BitCast(d, added));
    value = hn::CopySignToAbs(hn::Sub(sum, hn::BitCast(d, added)), x);
    const auto exponent = hn::ShiftRight<kShift>(hn::Sub(power, hn::Set(di, kSmallest)));
    const auto code = hn::Add(hn::Sub(hn::BitCast(di, sum), added), exponent);
    return hn::OrAnd(code, hn::ShiftRight<24>(hn::BitCast(di, x)), hn::Set(di, 0x80));
  }

  // As fp16, which has room for the exponents and another bias.
  float step(float unit) const { return unit * static_cast<float>(1 << (15 - kBias)); }
  template <class D>
  HWY_INLINE hn::Vec<D> decoded(D d, const uint8_t* from, size_t i, hn::Vec<D> step) const {
    const hn::Rebind<int8_t, D> d8;
    const hn::Rebind<int16_t, D> d16;
    const hn::Rebind<hwy::float16_t, D> df16;
    const auto wide =
        hn::ShiftLeft<10 - kMantissa>(hn::PromoteTo(d16, hn::LoadU(d8, reinterpret_cast<const int8_t*>(from) + i)));
    // The bits that the sign filled between itself and the exponent.
    const auto bits = hn::And(wide, hn::Set(d16, static_cast<int16_t>(0x8000 | (0x7f << (10 - kMantissa)))));
    return hn::Mul(hn::PromoteTo(d, hn::BitCast(df16, bits)), step);
  }

 private:
  static constexpr int kOne = 1 << kMantissa;
  static constexpr int kBias = (1 << (6 - kMantissa)) - 1;
  static constexpr int kShift = 23 - kMantissa;
  static constexpr int32_t kSmallest = (127 - kBias + 1) << 23;  // bits of the smallest normal number
};

// The exponent of fp32 itself, since x < 1 has only half of them. Random bits are added to the mantissa, whose carry
// then is the larger power; numbers below the smallest power work in the same way.
class Powers : public Bytes<Powers> {
 public:
  static constexpr bool kRandom = true;
  explicit Powers(int /*bits*/) {}

  float largest_value() const { return 1; }
  int32_t code_mask() const { return 0x7f; }
  int32_t zero_code() const { return 0; }
  int32_t largest_code() const { return 0x7f; }

  template <class D, class V, class R>
  HWY_INLINE hn::Vec<hn::RebindToSigned<D>> encode(D d, V x, R random, V& value) const {
    const hn::RebindToSigned<D> di;
    const auto draw = hn::Add(hn::ShiftLeft<7>(random), hn::Set(di, 64));
    const auto magnitude = hn::ShiftRight<23>(hn::Add(abs_bits(d, x), draw));
    const auto code = hn::OrAnd(magnitude, hn::ShiftRight<24>(hn::BitCast(di, x)), hn::Set(di, 0x80));
    value = this->value(d, code);
    return code;
  }

  template <class D, class C>
  HWY_INLINE hn::Vec<D> value(D d, C code) const {
    const hn::RebindToSigned<D> di;
    const auto magnitude = hn::ShiftLeft<23>(hn::And(code, hn::Set(di, 0x7f)));
    return hn::BitCast(d, hn::OrAnd(magnitude, hn::ShiftLeft<24>(code), hn::Set(di, INT32_MIN)));
  }

  template <class D>
  HWY_INLINE hn::Vec<D> unit(D d, hn::Vec<D> norm) const {
    const hn::RebindToSigned<D> di;
    const auto power = hn::And(hn::BitCast(di, norm), hn::Set(di, static_cast<int32_t>(kInfinityBits)));
    return hn::IfThenZeroElse(hn::Eq(norm, hn::Zero(d)), hn::BitCast(d, hn::Add(power, hn::Set(di, 1 << 23))));
  }
};

// For a block whose unit is zero: the code of 0 is sent.
class Zeros {
 public:
  static constexpr bool kRandom = false;
  explicit Zeros(int32_t zero_code) : zero_code_(zero_code) {}

  template <class D, class V, class R>
  HWY_INLINE hn::Vec<hn::RebindToSigned<D>> encode(D d, V /*x*/, R /*random*/, V& value) const {
    value = hn::Zero(d);
    return hn::Set(hn::RebindToSigned<D>(), zero_code_);
  }

 private:
  int32_t zero_code_;
};

// To read integers of two bits, -1, 0 and 1, from their planes: codes are 0, 1 and 2.
class Ternary {
 public:
  static constexpr int kBits = 2;
  explicit Ternary(int /*bits*/) {}

  template <class M, class V>
  static HWY_INLINE V value(M low_bit, M high_bit, V unit) {
    return hn::IfThenElse(high_bit, unit, hn::IfThenZeroElse(low_bit, hn::Neg(unit)));
  }
};

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradtune::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
