// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/efsignsgd_kernels.h"

#include <cmath>

#include "engine/compress/shared.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/compress/efsignsgd_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "engine/compress/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradtune::compress::HWY_NAMESPACE {

// Sum of |p| over 64 elements, and their sign bits. Element i goes to partial sum i % 8 whatever the vector size, so
// that every target rounds alike.
HWY_INLINE float sum_word(const float* gradient, const float* residual, uint64_t* signs) {
  const hn::CappedTag<float, 8> d;
  const hn::RebindToSigned<decltype(d)> di;
  HWY_ALIGN float lanes[8];
  uint64_t bits = 0;
  for (size_t lane = 0; lane < 8; lane += hn::Lanes(d)) {
    auto sum = hn::Zero(d);
    for (size_t i = lane; i < 64; i += 8) {
      const auto p = load_p(d, gradient, residual, i);
      sum = hn::Add(sum, hn::Abs(p));
      bits |= bits_of(d, hn::RebindMask(d, hn::Lt(hn::BitCast(di, p), hn::Zero(di)))) << i;
    }
    hn::StoreU(sum, d, lanes + lane);
  }
  *signs = bits;
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

// Sum of |p| over a block, and its sign bits.
HWY_INLINE double sum_block(const float* gradient, const float* residual, size_t n, std::byte* bits) {
  double sum = 0;
  uint64_t signs;
  size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    sum += double{sum_word(gradient + i, offset(residual, i), &signs)};
    std::memcpy(bits + i / 8, &signs, 8);
  }
  if (i < n) {
    HWY_ALIGN float rest[64] = {};
    for (size_t j = i; j < n; ++j) {
      rest[j - i] = residual == nullptr ? gradient[j] : gradient[j] + residual[j];
    }
    sum += double{sum_word(rest, nullptr, &signs)};
    std::memcpy(bits + i / 8, &signs, (n - i + 7) / 8);
  }
  return sum;
}

// The run comes by value: what the compiler keeps in registers no store can change.
void write_errors(const SignEncode run, size_t begin, size_t end, Output<float>& errors) {
  for (; begin < end; begin += kTile) {
    const size_t count = std::min(kTile, end - begin);
    float* error = errors.tile(begin);
    for_parts(begin, begin + count, run.block, [&](size_t block, size_t from, size_t to) HWY_ATTR {
      const float step = run.error_scale * run.scales[block];
      const float* gradient = run.gradient + from;
      const float* residual = offset(run.residual, from);
      float* part = error + (from - begin);
      for_vectors(to - from, [&](auto d, size_t i) HWY_ATTR {
        const auto p = load_p(d, gradient, residual, i);
        auto missed = hn::Sub(hn::Mul(p, hn::Set(d, run.unsent_factor)), hn::CopySignToAbs(hn::Set(d, step), p));
        if (run.add_to_residual_next) missed = hn::Add(hn::LoadU(d, part + i), missed);
        hn::StoreU(missed, d, part + i);
      });
    });
    errors.finish_tile(begin, count);
  }
}

bool encode_run(const SignEncode& run) {
  Output<float> errors(run.residual_next, run.stream && !run.add_to_residual_next);
  const double weight = double{run.scale} / static_cast<double>(run.block);
  double largest = 0, total = 0;
  // Errors need the scale, so blocks are read twice, as many of them at a time as make a tile: still in the cache.
  const size_t group = std::max(run.block, kTile / run.block * run.block);
  for (size_t begin = 0; begin < run.n; begin += group) {
    const size_t end = std::min(run.n, begin + group);
    for_parts(begin, end, run.block, [&](size_t block, size_t from, size_t to) HWY_ATTR {
      const size_t n = to - from;
      const double sum = sum_block(run.gradient + from, offset(run.residual, from), n, run.bits + from / 8);
      const bool whole = n == run.block;
      const double mean = sum * (whole ? weight : double{run.scale} / static_cast<double>(n));
      const auto scale = static_cast<float>(mean);
      run.scales[block] = std::isfinite(scale) ? scale : 0;
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
HWY_INLINE void add_part(const std::byte* bits, float scale, const float* old, float* sums, size_t n) {
  const hn::CappedTag<float, 32> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  // Moves bit l to where the float of lane l has its sign.
  const auto places = hn::Sub(hn::Set(du, 31), hn::Iota(du, 0));
  size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    uint32_t word;
    std::memcpy(&word, bits + i / 8, sizeof word);
    const auto signs = hn::Set(du, word);
    for (size_t j = 0; j < 32; j += hn::Lanes(d)) {
      const auto place = hn::Sub(places, hn::Set(du, static_cast<uint32_t>(j)));
      const auto sign = hn::And(hn::Shl(signs, place), hn::Set(du, 0x80000000));
      auto sum = hn::Xor(hn::Set(d, scale), hn::BitCast(d, sign));
      if (old != nullptr) sum = hn::Add(hn::LoadU(d, old + i + j), sum);
      hn::StoreU(sum, d, sums + i + j);
    }
  }
  for (; i < n; ++i) {
    const bool negative = (std::to_integer<uint32_t>(bits[i / 8]) >> i % 8 & 1) != 0;
    const float value = negative ? -scale : scale;
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
        add_part(bits + from / 8, scales[block], offset(old, at), tile + at, to - from);
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
