// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/block_codes_kernels.h"

#include <bit>
#include <cfloat>
#include <cmath>

#include "engine/compress/shared.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/compress/block_codes_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "engine/compress/random-inl.h"
#include "engine/compress/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradtune::compress::HWY_NAMESPACE {

// Each of the following says how numbers become codes: `unit` of a block by its norm, `encode` of x = element / unit with
// 16 random bits, `value` of a code, the code of 0, and the largest code there is, sign apart. No x is larger than the
// largest value but for rounding.

// Codes count from the lowest integer; `zero` is the code of 0. With one bit there is none, 0 lies between both.
template <bool kIsRandom>
class Integers {
 public:
  static constexpr bool kRandom = kIsRandom;

  explicit Integers(int bits)
      : high_(bits == 1 ? 1 : (1 << (bits - 1)) - 1),
        low_(bits == 1 ? 0 : -high_),
        shift_(bits == 1 ? 0.5F : 0.0F),
        zero_(shift_ - static_cast<float>(low_)) {}

  float largest_value() const { return static_cast<float>(high_) - shift_; }
  float unit(float norm) const { return norm / largest_value(); }
  int32_t code_mask() const { return 0xff; }
  int32_t zero_code() const { return -low_; }
  int32_t largest_code() const { return high_ - low_; }

  template <class D, class V, class R>
  HWY_INLINE hn::Vec<hn::RebindToSigned<D>> encode(D d, V x, R random) const {
    const hn::RebindToSigned<D> di;
    if constexpr (kRandom) {
      const auto code = hn::Sub(round_at_random(d, x, random, shift_), hn::Set(di, low_));
      return hn::Min(hn::Max(code, hn::Zero(di)), hn::Set(di, high_ - low_));
    } else {
      constexpr int32_t kBits = 0x4b400000;  // of 1.5 * 2^23, whose last place is that of integers
      const auto sum = hn::BitCast(di, hn::Add(x, hn::Set(d, 0x1.8p23F)));
      return hn::Sub(sum, hn::Set(di, kBits + low_));
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

// |x| with the sign of the number whose bits are moved up to there.
template <class D, class V, class C>
HWY_INLINE hn::Vec<D> with_sign(D d, V magnitude, C bits) {
  const hn::RebindToSigned<D> di;
  const auto sign = hn::Set(di, INT32_MIN);
  return hn::BitCast(d, hn::OrAnd(hn::BitCast(di, magnitude), bits, sign));
}

// Sign, exponent, and this many bits of mantissa; the largest code is that of the largest value.
template <int kMantissa, int32_t kLargestCode>
class Floats {
 public:
  static constexpr bool kRandom = false;
  explicit Floats(int /*bits*/) {}

  float largest_value() const {
    const int exponent = (kLargestCode >> kMantissa) - kBias;
    return std::ldexp(1 + static_cast<float>(kLargestCode & (kOne - 1)) / kOne, exponent);
  }
  float unit(float norm) const { return norm / largest_value(); }
  int32_t code_mask() const { return 0x7f; }
  int32_t zero_code() const { return 0; }
  int32_t largest_code() const { return kLargestCode; }

  // By adding a power of two whose last place is that of the code: 2^(23 - kMantissa) times that of |x|, or of the
  // smallest normal number. So many last places are the mantissa with its first bit, if it has one.
  template <class D, class V, class R>
  HWY_INLINE hn::Vec<hn::RebindToSigned<D>> encode(D d, V x, R /*random*/) const {
    const hn::RebindToSigned<D> di;
    const auto bits = abs_bits(d, x);
    const auto power = hn::Max(hn::And(bits, hn::Set(di, 0x7f800000)), hn::Set(di, kSmallest));
    const auto added = hn::Add(power, hn::Set(di, kShift << 23));
    const auto sum = hn::BitCast(di, hn::Add(hn::BitCast(d, bits), hn::BitCast(d, added)));
    const auto exponent = hn::ShiftRight<kShift>(hn::Sub(power, hn::Set(di, kSmallest)));
    const auto code = hn::Add(hn::Sub(sum, added), exponent);
    return hn::OrAnd(code, hn::ShiftRight<24>(hn::BitCast(di, x)), hn::Set(di, 0x80));
  }

  template <class D, class C>
  HWY_INLINE hn::Vec<D> value(D d, C code) const {
    const hn::RebindToSigned<D> di;
    const auto bits = hn::ShiftLeft<kShift>(hn::And(code, hn::Set(di, 0x7f)));
    const auto smallest = hn::Set(di, kSmallest);
    const auto normal = hn::BitCast(d, hn::Add(bits, hn::Set(di, kRebias << kShift)));
    // Right for subnormal numbers, and not below the right one for others.
    const auto subnormal = hn::Sub(hn::BitCast(d, hn::Add(bits, smallest)), hn::BitCast(d, smallest));
    return with_sign(d, hn::Min(normal, subnormal), hn::ShiftLeft<24>(code));
  }

 private:
  static constexpr int kOne = 1 << kMantissa;
  static constexpr int kBias = (1 << (6 - kMantissa)) - 1;
  static constexpr int kShift = 23 - kMantissa;
  static constexpr int32_t kRebias = (127 - kBias) << kMantissa;
  static constexpr int32_t kSmallest = (127 - kBias + 1) << 23;  // bits of the smallest normal number
};

// The exponent of fp32 itself, since x < 1 has only half of them. Random bits are added to the mantissa, whose carry then
// is the larger power; numbers below the smallest power work in the same way.
class Powers {
 public:
  static constexpr bool kRandom = true;
  explicit Powers(int /*bits*/) {}

  float largest_value() const { return 1; }
  float unit(float norm) const {
    return norm == 0 ? 0 : std::bit_cast<float>((std::bit_cast<uint32_t>(norm) & kInfinityBits) + (1U << 23));
  }
  int32_t code_mask() const { return 0x7f; }
  int32_t zero_code() const { return 0; }
  int32_t largest_code() const { return 0x7f; }

  template <class D, class V, class R>
  HWY_INLINE hn::Vec<hn::RebindToSigned<D>> encode(D d, V x, R random) const {
    const hn::RebindToSigned<D> di;
    const auto draw = hn::Add(hn::ShiftLeft<7>(random), hn::Set(di, 64));
    const auto magnitude = hn::ShiftRight<23>(hn::Add(abs_bits(d, x), draw));
    return hn::OrAnd(magnitude, hn::ShiftRight<24>(hn::BitCast(di, x)), hn::Set(di, 0x80));
  }

  template <class D, class C>
  HWY_INLINE hn::Vec<D> value(D d, C code) const {
    const hn::RebindToSigned<D> di;
    const auto magnitude = hn::ShiftLeft<23>(hn::And(code, hn::Set(di, 0x7f)));
    return with_sign(d, hn::BitCast(d, magnitude), hn::ShiftLeft<24>(code));
  }
};

// Of a block whose unit is zero: what is sent is the code of 0.
class Zeros {
 public:
  static constexpr bool kRandom = false;
  explicit Zeros(int32_t zero_code) : zero_code_(zero_code) {}

  template <class D, class V, class R>
  HWY_INLINE hn::Vec<hn::RebindToSigned<D>> encode(D /*d*/, V /*x*/, R /*random*/) const {
    return hn::Set(hn::RebindToSigned<D>(), zero_code_);
  }
  template <class D, class C>
  HWY_INLINE hn::Vec<D> value(D d, C /*code*/) const {
    return hn::Zero(d);
  }

 private:
  int32_t zero_code_;
};

// --- Norms. They do not depend on the size of vectors.

HWY_INLINE double largest_magnitude(const float* gradient, const float* residual, size_t n) {
  const uint32_t bits =
      largest_of(n, [&](auto d, size_t i) HWY_ATTR { return abs_bits(d, load_p(d, gradient, residual, i)); });
  return double{std::bit_cast<float>(bits)};
}

// --- Planes.

// `codes` has room for a whole last group.
HWY_INLINE void pack(uint8_t* codes, size_t n, int bits, uint8_t* planes) {
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

HWY_INLINE void unpack(const uint8_t* planes, size_t n, int bits, uint8_t* codes) {
  const hn::CappedTag<uint8_t, kPlaneElements> d;
  for (size_t begin = 0; begin < n; begin += kPlaneElements) {
    uint64_t words[8];
    std::memcpy(words, planes, static_cast<size_t>(bits) * sizeof(uint64_t));
    planes += static_cast<size_t>(bits) * sizeof(uint64_t);
    for (size_t lane = 0; lane < kPlaneElements; lane += hn::Lanes(d)) {
      auto code = hn::Zero(d);
      for (int bit = 0; bit < bits; ++bit) {
        const uint64_t word = words[bit] >> lane;
        const auto set = hn::LoadMaskBits(d, reinterpret_cast<const uint8_t*>(&word));
        code = hn::Or(code, hn::IfThenElseZero(set, hn::Set(d, static_cast<uint8_t>(1 << bit))));
      }
      hn::StoreU(code, d, codes + begin + lane);
    }
  }
}

// --- Runs. They come by value: what the compiler keeps in registers no store can change.

// Writes the units of the blocks of [begin, end); returns whether all is finite.
template <class Codes>
bool write_units(const Codes& codes, CodeFormat::Norm norm, const EncodeRun& run, const CodeTarget& to, size_t begin,
                 size_t end) {
  bool finite = true;
  for_parts(begin, end, to.block, [&](size_t block, size_t from, size_t stop) HWY_ATTR {
    const auto* gradient = run.gradient + from;
    const auto* residual = offset(run.residual, from);
    const double of_block = norm == CodeFormat::Norm::largest ? largest_magnitude(gradient, residual, stop - from)
                                                              : euclidean_norm(gradient, residual, stop - from);
    const auto sent = static_cast<float>(of_block * run.scale);
    const float unit = codes.unit(sent);
    const bool good = std::isfinite(sent) && std::isfinite(unit * codes.largest_value());
    finite &= good;
    to.units[block] = good && unit >= FLT_MIN ? unit : 0;
  });
  return finite;
}

template <class Codes>
HWY_INLINE void write_codes(const Codes& codes, const EncodeRun& run, float unit, size_t from, size_t to,
                            const uint16_t* random, uint8_t* code, float* error) {
  const float inverse = 1 / unit;
  const float* gradient = run.gradient + from;
  const float* residual = offset(run.residual, from);
  for_vectors(to - from, [&](auto d, size_t i) HWY_ATTR {
    prefetch_p(d, gradient, residual, i + kAhead);
    const hn::RebindToSigned<decltype(d)> di;
    const hn::Rebind<uint8_t, decltype(d)> d8;
    const hn::Rebind<uint16_t, decltype(d)> d16;
    const auto sent = hn::Mul(load_p(d, gradient, residual, i), hn::Set(d, run.scale));
    auto bits = hn::Zero(di);
    if constexpr (Codes::kRandom) bits = hn::PromoteTo(di, hn::LoadU(d16, random + i));
    const auto chosen = codes.encode(d, hn::Mul(sent, hn::Set(d, inverse)), bits);
    hn::StoreU(hn::DemoteTo(d8, chosen), d8, code + i);
    if (error != nullptr) {
      const auto decoded = hn::Mul(codes.value(d, chosen), hn::Set(d, unit));
      auto missed = hn::Mul(hn::Sub(sent, decoded), hn::Set(d, run.error_scale));
      if (run.add_to_residual_next) missed = hn::Add(hn::LoadU(d, error + i), missed);
      hn::StoreU(missed, d, error + i);
    }
  });
}

template <class Codes>
bool encode_run(const CodeFormat format, const EncodeRun run, const CodeTarget to) {
  const Codes codes(format.bits);
  const auto bits = static_cast<size_t>(format.bits);
  Output<uint8_t> out(to.codes, to.stream);
  Output<float> errors(run.residual_next, to.stream && !run.add_to_residual_next);
  RandomTile randoms(to.random);
  HWY_ALIGN uint8_t unpacked[kTile];
  const auto encode_tile = [&](size_t begin, size_t count) HWY_ATTR {
    const uint16_t* random = Codes::kRandom ? randoms.bits(to.first_element + begin, count) : nullptr;
    uint8_t* const place = out.tile(begin / 8 * bits);
    uint8_t* const code = bits == 8 ? place : unpacked;
    float* const error = errors.tile(begin);
    for_parts(begin, begin + count, to.block, [&](size_t block, size_t from, size_t stop) HWY_ATTR {
      const size_t at = from - begin;
      const float unit = to.units[block];
      if (unit > 0) {
        write_codes(codes, run, unit, from, stop, offset(random, at), code + at, offset(error, at));
      } else {
        write_codes(Zeros(codes.zero_code()), run, unit, from, stop, nullptr, code + at, offset(error, at));
      }
    });
    if (bits < 8) pack(unpacked, count, format.bits, place);
    out.finish_tile(begin / 8 * bits, static_cast<size_t>(code_bytes(count, format.bits)));
    errors.finish_tile(begin, count);
  };
  bool finite = true;
  // Codes need the unit, so blocks are read twice, as many of them at a time as make a tile: still in the cache.
  const size_t group = std::max(to.block, kTile / to.block * to.block);
  for (size_t begin = 0; begin < run.n; begin += group) {
    const size_t end = std::min(run.n, begin + group);
    finite &= write_units(codes, format.norm, run, to, begin, end);
    for (size_t tile = begin; tile < end; tile += kTile) encode_tile(tile, std::min(kTile, end - tile));
  }
  out.finish();
  errors.finish();
  return finite;
}

// Of so many payloads, where the units of a run and the codes of a tile begin.
struct Parts {
  const float* units[kAtOnce];
  const uint8_t* codes[kAtOnce];
};

// sums = (old == nullptr ? 0 : old) + the values of so many payloads, in their order, of a tile.
template <size_t kCount, class Codes>
HWY_INLINE void add_tile(const Codes codes, size_t block_size, const Parts parts, size_t begin, size_t end,
                         const float* old, float* sums) {
  for_parts(begin, end, block_size, [&](size_t block, size_t from, size_t to) HWY_ATTR {
    const size_t at = from - begin;
    const float* const before = offset(old, static_cast<int64_t>(at));
    float* const out = sums + at;
    float units[kCount];
    for (size_t p = 0; p < kCount; ++p) units[p] = parts.units[p][block];
    for_vectors(to - from, [&](auto d, size_t i) HWY_ATTR {
      const hn::RebindToSigned<decltype(d)> di;
      const hn::Rebind<uint8_t, decltype(d)> d8;
      const auto value = [&](size_t p) HWY_ATTR {
        prefetch(d, parts.codes[p] + at, i + kAhead);
        const auto code = hn::PromoteTo(di, hn::LoadU(d8, parts.codes[p] + at + i));
        return hn::Mul(codes.value(d, code), hn::Set(d, units[p]));
      };
      auto sum = value(0);
      if (before != nullptr) sum = hn::Add(hn::LoadU(d, before + i), sum);
      for (size_t p = 1; p < kCount; ++p) sum = hn::Add(sum, value(p));
      hn::StoreU(sum, d, out + i);
    });
  });
}

// The largest of so many codes, sign apart.
HWY_INLINE uint32_t largest_of_codes(const uint8_t* codes, size_t n, int32_t mask) {
  const hn::CappedTag<uint8_t, kPlaneElements> d;
  const auto of_code = hn::Set(d, static_cast<uint8_t>(mask));
  auto largest = hn::Zero(d);
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    largest = hn::Max(largest, hn::And(hn::LoadU(d, codes + i), of_code));
  }
  HWY_ALIGN uint8_t lanes[kPlaneElements];
  hn::Store(largest, d, lanes);
  uint32_t last = 0;
  for (size_t lane = 0; lane < hn::Lanes(d); ++lane) last = std::max<uint32_t>(last, lanes[lane]);
  for (; i < n; ++i) last = std::max<uint32_t>(last, codes[i] & static_cast<uint32_t>(mask));
  return last;
}

template <class Codes>
size_t decode_run(const CodeFormat format, const CodeDecode run) {
  const Codes codes(format.bits);
  Output<float> out(run.out, run.stream);
  HWY_ALIGN uint8_t unpacked[kAtOnce][kTile];
  const bool all_are_sent = codes.largest_code() == codes.code_mask();
  size_t bad = run.payloads.size();
  for (size_t begin = 0; begin < run.n; begin += kTile) {
    const size_t count = std::min(kTile, run.n - begin);
    float* const tile = out.tile(begin);
    const float* old = run.accumulate ? run.out + begin : nullptr;
    for (size_t first = 0; first < run.payloads.size(); first += kAtOnce) {
      const auto payloads = run.payloads.subspan(first, std::min(kAtOnce, run.payloads.size() - first));
      Parts parts{};
      for (size_t p = 0; p < payloads.size(); ++p) {
        const std::byte* const payload = payloads[p].data();
        parts.units[p] = reinterpret_cast<const float*>(payload + run.units_at);
        parts.codes[p] = reinterpret_cast<const uint8_t*>(payload + run.codes_at) + begin / 8 * format.bits;
        if (format.bits < 8) {
          unpack(parts.codes[p], count, format.bits, unpacked[p]);
          parts.codes[p] = unpacked[p];
        }
        if (all_are_sent) continue;
        const uint32_t largest = largest_of_codes(parts.codes[p], count, codes.code_mask());
        if (largest > static_cast<uint32_t>(codes.largest_code())) bad = std::min(bad, first + p);
      }
      with_count(payloads.size(),
                 [&](auto of) HWY_ATTR { add_tile<of()>(codes, run.block, parts, begin, begin + count, old, tile); });
      old = tile;
    }
    out.finish_tile(begin, count);
  }
  out.finish();
  return bad;
}

using Nearest = Integers<false>;
using Stochastic = Integers<true>;
using E4M3 = Floats<3, 0x7e>;
using E5M2 = Floats<2, 0x7b>;

bool encode_any(const CodeFormat& format, const EncodeRun& run, const CodeTarget& to) {
  switch (format.codes) {
    case CodeFormat::Codes::nearest: return encode_run<Nearest>(format, run, to);
    case CodeFormat::Codes::stochastic: return encode_run<Stochastic>(format, run, to);
    case CodeFormat::Codes::e4m3: return encode_run<E4M3>(format, run, to);
    case CodeFormat::Codes::e5m2: return encode_run<E5M2>(format, run, to);
    case CodeFormat::Codes::power: return encode_run<Powers>(format, run, to);
  }
  return false;
}

size_t decode_any(const CodeFormat& format, const CodeDecode& run) {
  switch (format.codes) {
    case CodeFormat::Codes::nearest: return decode_run<Nearest>(format, run);
    case CodeFormat::Codes::stochastic: return decode_run<Stochastic>(format, run);
    case CodeFormat::Codes::e4m3: return decode_run<E4M3>(format, run);
    case CodeFormat::Codes::e5m2: return decode_run<E5M2>(format, run);
    case CodeFormat::Codes::power: return decode_run<Powers>(format, run);
  }
  return 0;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradtune::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradtune::compress {

HWY_EXPORT(encode_any);
HWY_EXPORT(decode_any);

bool encode_codes(const CodeFormat& format, const EncodeRun& run, const CodeTarget& to) {
  return HWY_DYNAMIC_DISPATCH(encode_any)(format, run, to);
}

size_t decode_codes(const CodeFormat& format, const CodeDecode& run) {
  return HWY_DYNAMIC_DISPATCH(decode_any)(format, run);
}

}  // namespace gradtune::compress
#endif
