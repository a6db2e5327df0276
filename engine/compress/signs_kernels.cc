// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/signs_kernels.h"

#include <bit>
#include <cmath>

#include "engine/compress/shared.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/compress/signs_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "engine/compress/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradtune::compress::HWY_NAMESPACE {

// Where the first bit of a lane is set: of numbers, -0 and NaN with a sign as well.
template <class D, class V>
HWY_INLINE hn::Mask<D> sign_mask(D d, V v) {
  const hn::RebindToSigned<D> di;
  return hn::RebindMask(d, hn::Lt(hn::BitCast(di, v), hn::Zero(di)));
}

template <class D, class V>
HWY_INLINE hn::Vec<D> by_sign(D d, V v, hn::Vec<D> negative, hn::Vec<D> positive) {
  return hn::IfThenElse(sign_mask(d, v), negative, positive);
}

// Of the magnitudes of elements: their sum on the positive and on the negative side, or on both together in the first.
struct Sums {
  double first = 0, negative = 0;
  int64_t negatives = 0;

  double total() const { return first + negative; }
};

// Element i goes to partial sum i % 8 whatever the vector size, so that every target rounds alike.
HWY_INLINE double sum_lanes(const float* lanes) {
  return double{((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]))};
}

// Adds 64 elements to the sums and returns their sign bits.
template <bool kSides>
HWY_INLINE uint64_t sum_word(const float* gradient, const float* residual, Sums& sums) {
  const hn::CappedTag<float, 8> d;
  HWY_ALIGN float first_lanes[8];
  HWY_ALIGN float negative_lanes[8];
  uint64_t bits = 0;
  for (size_t lane = 0; lane < 8; lane += hn::Lanes(d)) {
    auto first = hn::Zero(d), negative = hn::Zero(d);
    for (size_t i = lane; i < 64; i += 8) {
      const auto p = load_p(d, gradient, residual, i);
      const auto is_negative = sign_mask(d, p);
      if constexpr (kSides) {
        first = hn::Add(first, hn::IfThenZeroElse(is_negative, p));
        negative = hn::Add(negative, hn::IfThenElseZero(is_negative, hn::Abs(p)));
      } else {
        first = hn::Add(first, hn::Abs(p));
      }
      bits |= bits_of(d, is_negative) << i;
    }
    hn::StoreU(first, d, first_lanes + lane);
    hn::StoreU(negative, d, negative_lanes + lane);
  }
  sums.first += sum_lanes(first_lanes);
  if constexpr (kSides) {
    sums.negative += sum_lanes(negative_lanes);
    sums.negatives += std::popcount(bits);
  }
  return bits;
}

// The sums of a block, and its sign bits.
template <bool kSides>
HWY_INLINE Sums sum_block(const float* gradient, const float* residual, size_t n, std::byte* bits) {
  Sums sums;
  size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    const uint64_t signs = sum_word<kSides>(gradient + i, offset(residual, i), sums);
    std::memcpy(bits + i / 8, &signs, 8);
  }
  if (i < n) {
    HWY_ALIGN float rest[64] = {};
    for (size_t j = i; j < n; ++j) {
      rest[j - i] = residual == nullptr ? gradient[j] : gradient[j] + residual[j];
    }
    const uint64_t signs = sum_word<kSides>(rest, nullptr, sums);
    std::memcpy(bits + i / 8, &signs, (n - i + 7) / 8);
  }
  return sums;
}

HWY_INLINE float finite_or_zero(double value) {
  const auto rounded = static_cast<float>(value);
  return std::isfinite(rounded) ? rounded : 0;
}

// Sums a block of n elements, writes its bits and scales.
HWY_INLINE Sums write_block(const SignEncode& run, size_t block, size_t from, size_t n) {
  const float* gradient = run.gradient + from;
  const float* residual = offset(run.residual, from);
  std::byte* bits = run.bits + from / 8;
  float* scales = run.scales + block * static_cast<size_t>(scales_per_block(run.kind));
  const double scale = run.scale;
  if (run.kind == SignScales::means) {
    const Sums sums = sum_block<true>(gradient, residual, n, bits);
    const int64_t positives = static_cast<int64_t>(n) - sums.negatives;
    scales[0] = positives == 0 ? 0 : finite_or_zero(sums.first * (scale / static_cast<double>(positives)));
    scales[1] = sums.negatives == 0 ? 0 : finite_or_zero(sums.negative * (scale / static_cast<double>(sums.negatives)));
    return sums;
  }
  const Sums sums = sum_block<false>(gradient, residual, n, bits);
  scales[0] = run.kind == SignScales::mean ? finite_or_zero(sums.first * (scale / static_cast<double>(n)))
                                           : std::bit_cast<float>(std::bit_cast<uint32_t>(run.scale) & 0xfffff000);
  return sums;
}

// What the signs of a block stand for.
struct Levels {
  float positive, negative;

  Levels(SignScales kind, const float* scales, size_t block) {
    const auto count = static_cast<size_t>(scales_per_block(kind));
    positive = scales[block * count];
    negative = -scales[block * count + count - 1];
  }
};

// The run comes by value: what the compiler keeps in registers no store can change.
void write_errors(const SignEncode run, size_t begin, size_t end, Output<float>& errors) {
  for (; begin < end; begin += kTile) {
    const size_t count = std::min(kTile, end - begin);
    float* error = errors.tile(begin);
    for_parts(begin, begin + count, run.block, [&](size_t block, size_t from, size_t to) HWY_ATTR {
      const Levels levels(run.kind, run.scales, block);
      const float positive = run.error_scale * levels.positive, negative = run.error_scale * levels.negative;
      const float* gradient = run.gradient + from;
      const float* residual = offset(run.residual, from);
      float* part = error + (from - begin);
      for_vectors(to - from, [&](auto d, size_t i) HWY_ATTR {
        const auto p = load_p(d, gradient, residual, i);
        const auto sent = by_sign(d, p, hn::Set(d, negative), hn::Set(d, positive));
        auto missed = hn::Sub(hn::Mul(p, hn::Set(d, run.unsent_factor)), sent);
        if (run.add_to_residual_next) missed = hn::Add(hn::LoadU(d, part + i), missed);
        hn::StoreU(missed, d, part + i);
      });
    });
    errors.finish_tile(begin, count);
  }
}

bool encode_run(const SignEncode& run) {
  Output<float> errors(run.residual_next, run.stream && !run.add_to_residual_next);
  double largest = 0, total = 0;
  // Errors need the scale, so blocks are read twice, as many of them at a time as make a tile: still in the cache.
  const size_t group = std::max(run.block, kTile / run.block * run.block);
  for (size_t begin = 0; begin < run.n; begin += group) {
    const size_t end = std::min(run.n, begin + group);
    for_parts(begin, end, run.block, [&](size_t block, size_t from, size_t to) HWY_ATTR {
      const double sum = write_block(run, block, from, to - from).total();
      largest = std::max(largest, sum);
      total += sum;
    });
    if (run.residual_next != nullptr) write_errors(run, begin, end, errors);
  }
  errors.finish();
  // The sum of a block bounds every element of it, and so what is sent and what is kept; the maximum passes over a NaN,
  // the total does not.
  const auto bound = static_cast<float>(largest);
  return std::isfinite(total) && std::isfinite(bound * run.scale) && std::isfinite(bound * run.unsent_factor);
}

// sums = (old == nullptr ? 0 : old) + the values of part of a block. The part starts at a byte of the sign bits.
HWY_INLINE void add_part(const std::byte* bits, const Levels& levels, const float* old, float* sums, size_t n) {
  const hn::CappedTag<float, 32> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  // Moves bit l to where the float of lane l has its sign.
  const auto places = hn::Sub(hn::Set(du, 31), hn::Iota(du, 0));
  const auto positive = hn::Set(d, levels.positive), negative = hn::Set(d, levels.negative);
  size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    uint32_t word;
    std::memcpy(&word, bits + i / 8, sizeof word);
    const auto signs = hn::Set(du, word);
    for (size_t j = 0; j < 32; j += hn::Lanes(d)) {
      const auto place = hn::Sub(places, hn::Set(du, static_cast<uint32_t>(j)));
      auto sum = by_sign(d, hn::Shl(signs, place), negative, positive);
      if (old != nullptr) sum = hn::Add(hn::LoadU(d, old + i + j), sum);
      hn::StoreU(sum, d, sums + i + j);
    }
  }
  for (; i < n; ++i) {
    const bool is_negative = (std::to_integer<uint32_t>(bits[i / 8]) >> i % 8 & 1) != 0;
    const float value = is_negative ? levels.negative : levels.positive;
    sums[i] = old == nullptr ? value : old[i] + value;
  }
}

void decode_run(const SignDecode& run) {
  Output<float> out(run.out, run.stream);
  for (size_t begin = 0; begin < run.n; begin += kTile) {
    const size_t count = std::min(kTile, run.n - begin);
    float* const tile = out.tile(begin);
    const float* old = run.accumulate ? run.out + begin : nullptr;
    for (const std::span<const std::byte>& payload : run.payloads) {
      const auto* scales = reinterpret_cast<const float*>(payload.data() + run.scales_at);
      const std::byte* bits = payload.data() + run.bits_at;
      const auto add = [&](size_t block, size_t from, size_t to) HWY_ATTR {
        const size_t at = from - begin;
        add_part(bits + from / 8, Levels(run.kind, scales, block), offset(old, at), tile + at, to - from);
      };
      for_parts(begin, begin + count, run.block, add);
      old = tile;
    }
    out.finish_tile(begin, count);
  }
  out.finish();
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradtune::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradtune::compress {

HWY_EXPORT(encode_run);
HWY_EXPORT(decode_run);

bool encode_signs(const SignEncode& run) { return HWY_DYNAMIC_DISPATCH(encode_run)(run); }
void decode_signs(const SignDecode& run) { HWY_DYNAMIC_DISPATCH(decode_run)(run); }

}  // namespace gradtune::compress
#endif
