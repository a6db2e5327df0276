// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/thc/thc_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/compress/thc/thc_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "engine/compress/simd/random-inl.h"
#include "engine/compress/simd/simd-inl.h"
#include "engine/compress/thc/rotation-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradtune::compress::HWY_NAMESPACE {

// D v, for the elements from i on.
template <class D>
HWY_INLINE hn::Vec<D> change_signs(D d, const RotationSigns& signs, size_t i, hn::Vec<D> v) {
  const auto changes = mask_at(d, reinterpret_cast<const uint8_t*>(signs.data()), i);
  return hn::IfThenElse(changes, hn::Neg(v), v);
}

// A factor applied before the sums, so that they do not overflow. It is a power of two, so nothing is rounded.
constexpr float kNorm = 1.0F / 32;

// Calls to(d, i, values) with the rotated values of codes from element i of a block on. Each code is the sum of those
// of `summed` ranks. Returns true if no code is larger than a valid one.
template <class To>
HWY_INLINE bool decode_block(const BlockCodes& codes, const ThcLevels& levels, int summed, const To& to) {
  const float unit = levels.unit * kNorm;
  const auto most = static_cast<uint8_t>(std::min(levels.levels * summed, 255));
  return transform_codes(codes, most, [&](auto d, size_t i, auto sums) HWY_ATTR {
    auto value = hn::Mul(sums, hn::Set(d, unit));
    if (i == 0) {
      // A constant added to all elements changes only the first element of the product with H. Both sums may be too
      // large for fp32 although their difference is not.
      const auto ranks = static_cast<double>(codes.payloads.size()) * summed;
      const double lows = kOrder * kNorm * ranks * levels.low;
      const auto first = static_cast<float>(double{hn::GetLane(sums)} * unit + lows);
      value = hn::IfThenElse(hn::FirstN(d, 1), hn::Set(d, first), value);
    }
    to(d, i, value);
  });
}

// The codes of a rotated block.
HWY_INLINE void write_codes(const EncodeRun of, const ThcBlock& shared, const uint16_t* random, uint8_t* codes) {
  const ThcLevels levels = shared.levels;
  if (levels.unit == 0) {
    std::fill_n(codes, kOrder, uint8_t{0});
    return;
  }
  const float per_unit = 1 / levels.unit, scale = of.scale * kNorm;
  const auto rotated = [&](auto d, size_t i) HWY_ATTR {
    // Prefetches the block after the next one: half of it here, half below, so that memory is always busy.
    prefetch_p_far(d, of.gradient, of.residual, 2 * kOrder + i / 2);
    return change_signs(d, shared.signs, i, hn::Mul(load_p(d, of.gradient, of.residual, i), hn::Set(d, scale)));
  };
  const auto quantise = [&](auto d, size_t i, auto y) HWY_ATTR {
    const hn::RebindToUnsigned<decltype(d)> du;
    const hn::Rebind<uint16_t, decltype(d)> d16;
    const hn::Rebind<uint8_t, decltype(d)> d8;
    prefetch_p_far(d, of.gradient, of.residual, 2 * kOrder + kOrder / 2 + i / 2);
    const auto above = hn::Mul(hn::Sub(y, hn::Set(d, levels.low)), hn::Set(d, per_unit));
    const auto inside = hn::Max(hn::Min(above, hn::Set(d, static_cast<float>(levels.levels))), hn::Zero(d));
    const auto code = round_to_byte_at_random(d, inside, hn::PromoteTo(du, hn::LoadU(d16, random + i)));
    hn::StoreU(hn::TruncateTo(d8, code), d8, codes + i);
  };
  transform(rotated, quantise);
}

// Writes the codes of a block of at most kOrder elements, and its errors if they are kept. `error` has room for a
// whole block.
HWY_INLINE void encode_block(const EncodeRun& block, const ThcBlock& shared, const uint16_t* random, uint8_t* codes,
                             float* error) {
  EncodeRun of = block;  // a copy, which the compiler may keep in registers across stores
  HWY_ALIGN float padded[kOrder];
  if (of.n < kOrder) {
    for_vectors(of.n,
                [&](auto d, size_t i) HWY_ATTR { hn::StoreU(load_p(d, of.gradient, of.residual, i), d, padded + i); });
    std::fill(padded + of.n, padded + kOrder, 0.0F);
    of.gradient = padded;
    of.residual = nullptr;
  }
  write_codes(of, shared, random, codes);
  if (error == nullptr) return;
  const std::span own(reinterpret_cast<const std::byte*>(codes), kOrder);
  const std::span<const std::byte> payloads[] = {own};
  decode_block({payloads, 0}, shared.levels, 1, [&](auto d, size_t i, auto value) HWY_ATTR {
    const auto p = load_p(d, of.gradient, of.residual, i);
    const auto sent = hn::Mul(change_signs(d, shared.signs, i, value), hn::Set(d, of.error_scale));
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
    float* const error = errors.tile(begin);
    const auto encode = [&](float* to_error) HWY_ATTR {
      encode_block(block, to.blocks[b], random.bits(static_cast<uint64_t>(to.first_element) + begin, kOrder),
                   codes.tile(begin), to_error);
    };
    if (error == nullptr || block.n == kOrder) {
      encode(error);
    } else {
      HWY_ALIGN float whole[kOrder] = {};
      std::copy_n(error, block.n, whole);
      encode(whole);
      std::copy_n(whole, block.n, error);
    }
    codes.finish_tile(kOrder);
    errors.finish_tile(block.n);
  }
}

bool decode_run(const ThcDecode& run) {
  SumOutput out(run.out, run.stream, kOrder);
  bool good = true;
  for (size_t b = 0; b < run.blocks.size(); ++b) {
    const size_t begin = b * kOrder, n = std::min(kOrder, run.n - begin);
    const auto& [signs, levels] = run.blocks[b];
    const float* old = run.accumulate ? run.out + begin : nullptr;
    for (size_t first = 0; first < run.payloads.size(); first += BlockCodes::kMost) {
      const auto payloads = run.payloads.subspan(first, std::min(BlockCodes::kMost, run.payloads.size() - first));
      const Place to = out.pass(begin, first + payloads.size() == run.payloads.size());
      const BlockCodes codes{payloads, run.codes_at + begin};
      const auto add = [&](auto d, size_t i, auto value) HWY_ATTR {
        value = change_signs(d, signs, i, value);
        if (old != nullptr) value = hn::Add(hn::LoadU(d, old + i), value);
        to.store(value, d, i);
      };
      if (n < kOrder) {
        HWY_ALIGN float whole[kOrder];
        good &= decode_block(codes, levels, run.summed,
                             [&](auto d, size_t i, auto value) HWY_ATTR { hn::Store(value, d, whole + i); });
        for_vectors(n, [&](auto d, size_t i) HWY_ATTR { add(d, i, hn::LoadU(d, whole + i)); });
      } else if (old == nullptr && to.past_caches) {
        good &= decode_block(codes, levels, run.summed, [&](auto d, size_t i, auto value) HWY_ATTR {
          Place{to.to, true}.store(change_signs(d, signs, i, value), d, i);
        });
      } else {
        good &= decode_block(codes, levels, run.summed, add);
      }
      old = to.to;
    }
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
