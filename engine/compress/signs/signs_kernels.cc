// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/signs/signs_kernels.h"

#include <bit>
#include <cmath>

#include "engine/compress/shared.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/compress/signs/signs_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "engine/compress/simd/bit_sums-inl.h"
#include "engine/compress/simd/momentum-inl.h"
#include "engine/compress/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradtune::compress::HWY_NAMESPACE {

// True in lanes whose sign bit is set: negative numbers, and -0 and NaN with a sign as well.
template <class D, class V>
HWY_INLINE hn::Mask<D> sign_mask(D d, V v) {
  const hn::RebindToSigned<D> di;
  return hn::RebindMask(d, hn::Lt(hn::BitCast(di, v), hn::Zero(di)));
}

template <class D, class V>
HWY_INLINE hn::Vec<D> by_sign(D d, V v, hn::Vec<D> negative, hn::Vec<D> positive) {
  return hn::IfThenElse(sign_mask(d, v), negative, positive);
}

// The sums of magnitudes on the positive and on the negative side; or the sum of both sides in `first`.
struct Sums {
  double first = 0, negative = 0;
  int64_t negatives = 0;

  double total() const { return first + negative; }
};

// Element i goes to partial sum i % kLanes whatever the vector size, so that every target rounds alike.
constexpr size_t kLanes = 16;

// Adds n elements, a multiple of 64 and at most a tile, to the sums and writes their sign bits. `reads_once`: no
// other code prefetches the next tile.
template <bool kSides>
HWY_INLINE void sum_words(const float* gradient, const float* residual, size_t n, bool reads_once, std::byte* bits,
                          Sums& sums) {
  const hn::CappedTag<float, kLanes> d;
  HWY_ALIGN float first_lanes[kLanes];
  HWY_ALIGN float negative_lanes[kLanes];
  uint64_t words[kTile / 64] = {};
  for (size_t lane = 0; lane < kLanes; lane += hn::Lanes(d)) {
    auto first = hn::Zero(d), negative = hn::Zero(d);
    for (size_t begin = 0; begin < n; begin += 64) {
      uint64_t word = words[begin / 64];
      for (size_t i = begin + lane; i < begin + 64; i += kLanes) {
        if (reads_once) prefetch_behind(d, gradient, residual, i);
        const auto p = load_p(d, gradient, residual, i);
        const auto is_negative = sign_mask(d, p);
        if constexpr (kSides) {
          first = hn::Add(first, hn::IfThenZeroElse(is_negative, p));
          negative = hn::Add(negative, hn::IfThenElseZero(is_negative, hn::Abs(p)));
        } else {
          first = hn::Add(first, hn::Abs(p));
        }
        word |= bits_of(d, is_negative) << (i - begin);
      }
      words[begin / 64] = word;
    }
    hn::Store(first, d, first_lanes + lane);
    hn::Store(negative, d, negative_lanes + lane);
  }
  sums.first += double{sum_of_sixteen(first_lanes)};
  if constexpr (kSides) sums.negative += double{sum_of_sixteen(negative_lanes)};
  for (size_t i = 0; i < n / 64; ++i) {
    if constexpr (kSides) sums.negatives += std::popcount(words[i]);
    std::memcpy(bits + 8 * i, &words[i], 8);
  }
}

// The sums of a block, and its sign bits.
template <bool kSides>
HWY_INLINE Sums sum_block(const float* gradient, const float* residual, size_t n, bool reads_once, std::byte* bits) {
  Sums sums;
  const size_t whole = n / 64 * 64;
  for (size_t i = 0; i < whole; i += kTile) {
    sum_words<kSides>(gradient + i, offset(residual, i), std::min(kTile, whole - i), reads_once, bits + i / 8, sums);
  }
  if (whole == n) return sums;
  HWY_ALIGN float rest[64] = {};
  for (size_t i = whole; i < n; ++i) rest[i - whole] = residual == nullptr ? gradient[i] : gradient[i] + residual[i];
  std::byte word[8];
  sum_words<kSides>(rest, nullptr, 64, /*reads_once=*/false, word, sums);
  std::memcpy(bits + whole / 8, word, (n - whole + 7) / 8);
  return sums;
}

HWY_INLINE float finite_or_zero(double value) {
  const auto rounded = static_cast<float>(value);
  return std::isfinite(rounded) ? rounded : 0;
}

// Sums a block of n elements, writes its bits and scales. `of_mean` is run.scale / n.
template <SignScales kKind>
HWY_INLINE Sums write_block(const EncodeRun& run, const SignTarget& to, size_t from, size_t n, double of_mean) {
  const Sums sums = sum_block<kKind == SignScales::means>(run.gradient + from, offset(run.residual, from), n,
                                                          run.residual_next == nullptr, to.bits + from / 8);
  float* scales = to.scales + from / to.block * static_cast<size_t>(scales_per_block(kKind));
  if constexpr (kKind == SignScales::means) {
    const double scale = run.scale;
    const int64_t positives = static_cast<int64_t>(n) - sums.negatives;
    scales[0] = positives == 0 ? 0 : finite_or_zero(sums.first * (scale / static_cast<double>(positives)));
    scales[1] = sums.negatives == 0 ? 0 : finite_or_zero(sums.negative * (scale / static_cast<double>(sums.negatives)));
  } else if constexpr (kKind == SignScales::mean) {
    scales[0] = finite_or_zero(sums.first * of_mean);
  } else {
    scales[0] = std::bit_cast<float>(std::bit_cast<uint32_t>(run.scale) & 0xfffff000);
  }
  return sums;
}

// The values of the signs of a block.
struct Levels {
  float positive = 0, negative = 0;

  Levels() = default;
  Levels(SignScales kind, const float* scales, size_t block) {
    const auto count = static_cast<size_t>(scales_per_block(kind));
    positive = scales[block * count];
    negative = -scales[block * count + count - 1];
  }
};

// The run is passed by value, so that the compiler may keep it in registers across stores.
HWY_NOINLINE void write_errors(const EncodeRun run, const SignTarget to, size_t begin, size_t end, size_t at,
                               Output<float>& errors) {
  for (; begin < end; begin += kTile) {
    const size_t count = std::min(kTile, end - begin);
    float* error = errors.tile(at + begin);
    for_parts(begin, begin + count, to.block, [&](size_t block, size_t from, size_t stop) HWY_ATTR {
      const Levels levels(to.kind, to.scales, block);
      const float positive = run.error_scale * levels.positive, negative = run.error_scale * levels.negative;
      const float* gradient = run.gradient + from;
      const float* residual = offset(run.residual, from);
      float* part = error + (from - begin);
      for_vectors(stop - from, [&](auto d, size_t i) HWY_ATTR {
        prefetch_behind(d, gradient, residual, i);
        const auto p = load_p(d, gradient, residual, i);
        const auto sent = by_sign(d, p, hn::Set(d, negative), hn::Set(d, positive));
        auto missed = hn::Sub(hn::Mul(p, hn::Set(d, run.unsent_factor)), sent);
        if (run.add_to_residual_next) missed = hn::Add(hn::LoadU(d, part + i), missed);
        hn::StoreU(missed, d, part + i);
      });
    });
    errors.finish_tile(count);
  }
}

// The sums of blocks.
struct BlockSums {
  double largest = 0, total = 0;
};

// Encodes a run of blocks. Its errors begin `at` elements behind the start of `errors`.
template <SignScales kKind>
HWY_INLINE void encode_blocks(const EncodeRun& run, const SignTarget& to, size_t at, Output<float>& errors,
                              BlockSums& sums) {
  // Errors need the scale, so blocks are read twice. As many blocks as make a tile are processed at a time, which
  // stay in the cache. Errors of votes do not need it.
  const size_t block = to.block;
  const size_t group = kKind == SignScales::vote ? kTile : std::max(block, kTile / block * block);
  const auto of_mean = [&](size_t n) { return double{run.scale} / static_cast<double>(n); };
  const double of_whole = of_mean(block);
  BlockSums of_run;
  for (size_t begin = 0; begin < run.n; begin += group) {
    const size_t end = std::min(run.n, begin + group);
    for (size_t from = begin; from < end; from += block) {
      const size_t n = std::min(block, end - from);
      const double sum = write_block<kKind>(run, to, from, n, n == block ? of_whole : of_mean(n)).total();
      of_run.largest = std::max(of_run.largest, sum);
      of_run.total += sum;
    }
    if (run.residual_next != nullptr) write_errors(run, to, begin, end, at, errors);
  }
  sums.largest = std::max(sums.largest, of_run.largest);
  sums.total += of_run.total;
}

HWY_INLINE void encode_momentum(const EncodeRun& run, const SignTarget& to, Output<float>& errors, BlockSums& sums) {
  const Momentum momentum = to.momentum;
  Output<float> next(momentum.next, to.stream);
  for (size_t begin = 0; begin < run.n; begin += kTile) {
    const size_t count = std::min(kTile, run.n - begin);
    float* const tile = next.tile(begin);
    update_momentum(momentum.before + begin, momentum.decay, run.gradient + begin, offset(run.residual, begin), count,
                    tile);
    EncodeRun part = run;
    part.gradient = tile;
    part.residual = nullptr;
    part.n = count;
    SignTarget target = to;
    target.bits += begin / 8;
    target.scales += begin / to.block;
    encode_blocks<SignScales::vote>(part, target, begin, errors, sums);
    next.finish_tile(count);
  }
}

bool encode_run(const EncodeRun& run, const SignTarget& to) {
  Output<float> errors(run.residual_next, to.stream && !run.add_to_residual_next);
  BlockSums sums;
  if (to.momentum.before != nullptr) {
    encode_momentum(run, to, errors, sums);
  } else if (to.kind == SignScales::mean) {
    encode_blocks<SignScales::mean>(run, to, 0, errors, sums);
  } else if (to.kind == SignScales::means) {
    encode_blocks<SignScales::means>(run, to, 0, errors, sums);
  } else {
    encode_blocks<SignScales::vote>(run, to, 0, errors, sums);
  }
  // The sum of a block bounds each of its elements, and so the sent values and the errors. A NaN is lost in the
  // maximum, but not in the total.
  const auto bound = static_cast<float>(sums.largest);
  return std::isfinite(sums.total) && std::isfinite(bound * run.scale) && std::isfinite(bound * run.unsent_factor);
}

// The places in up to kAtOnce payloads where the scales of a run, kScales for a block, and the signs of a tile begin.
template <size_t kScales>
struct SignParts {
  const float* scales[kAtOnce];
  const uint64_t* bits[kAtOnce];

  template <size_t kCount>
  HWY_INLINE hn::Vec<BitPlanes> plane(size_t first, size_t bit, size_t word) const {
    const BitPlanes d;
    return bit < kCount ? hn::LoadU(d, bits[first + bit] + word) : hn::Zero(d);
  }

  template <size_t kCount, class D, class V>
  HWY_INLINE hn::Vec<D> sum(D d, size_t first, size_t block, V nibbles) const {
    auto sum = value(d, first, block, has_bit(d, nibbles, 0));
    for (size_t p = 1; p < kCount; ++p) sum = hn::Add(sum, value(d, first + p, block, has_bit(d, nibbles, p)));
    return sum;
  }

 private:
  template <class D>
  HWY_INLINE hn::Vec<D> value(D d, size_t payload, size_t block, hn::Mask<D> is_negative) const {
    const float* const of = scales[payload] + block * kScales;
    auto scale = hn::Set(d, of[0]);
    if constexpr (kScales == 2) scale = hn::IfThenElse(is_negative, hn::Set(d, of[1]), scale);
    return hn::Xor(scale, hn::IfThenElseZero(is_negative, hn::Set(d, -0.0F)));
  }
};

template <size_t kScales>
void decode_scaled(const SignDecode& run) {
  SumOutput out(run.out, run.stream, run.block);
  const size_t whole = tile_of(run.payloads.size());
  HWY_ALIGN uint64_t last[kAtOnce][kMostOfTile / 64] = {};  // of a tile that is not whole
  for (size_t begin = 0; begin < run.n; begin += whole) {
    const size_t count = std::min(whole, run.n - begin);
    const float* old = run.accumulate ? run.out + begin : nullptr;
    for (size_t first = 0; first < run.payloads.size();) {
      const auto payloads = run.payloads.subspan(first, at_once(run.payloads.size() - first));
      const Place to = out.pass(begin, first + payloads.size() == run.payloads.size());
      SignParts<kScales> parts{};
      for (size_t p = 0; p < payloads.size(); ++p) {
        const std::byte* const payload = payloads[p].data();
        parts.scales[p] = reinterpret_cast<const float*>(payload + run.scales_at);
        const std::byte* const at = payload + run.bits_at + begin / 8;
        for (size_t line = 0; line < whole / 8; line += 64) hwy::Prefetch(at + 2 * whole / 8 + line);
        if (count < whole) std::memcpy(last[p], at, (count + 7) / 8);
        parts.bits[p] = count < whole ? last[p] : reinterpret_cast<const uint64_t*>(at);
      }
      with_count(payloads.size(), [&](auto of) HWY_ATTR {
        add_by_bits<kBitsTogether, of()>(parts, run.block, begin, begin + count, old, to);
      });
      first += payloads.size();
      old = to.to;
    }
    out.finish_tile(count);
  }
}

void decode_run(const SignDecode& run) {
  scales_per_block(run.kind) == 1 ? decode_scaled<1>(run) : decode_scaled<2>(run);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradtune::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradtune::compress {

HWY_EXPORT(encode_run);
HWY_EXPORT(decode_run);

bool encode_signs(const EncodeRun& run, const SignTarget& to) { return HWY_DYNAMIC_DISPATCH(encode_run)(run, to); }
void decode_signs(const SignDecode& run) { HWY_DYNAMIC_DISPATCH(decode_run)(run); }

}  // namespace gradtune::compress
#endif
