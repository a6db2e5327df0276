// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/sparse/sparse_kernels.h"

#include <bit>
#include <cstring>

#include "engine/compress/shared.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/compress/sparse/sparse_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "engine/compress/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradtune::compress::HWY_NAMESPACE {

template <class D>
HWY_INLINE auto p_bits(D d, const float* gradient, const float* residual, size_t i) {
  const hn::RebindToUnsigned<D> du;
  return hn::BitCast(du, load_p(d, gradient, residual, i));
}

HWY_INLINE bool is_there(const float* gradient, const float* residual, size_t begin, size_t end) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> lane;
  const hn::RebindToUnsigned<decltype(d)> du;
  auto bits = hn::Zero(du);
  uint32_t last = 0;
  size_t i = begin;
  for (; i + hn::Lanes(d) <= end; i += hn::Lanes(d)) bits = hn::Or(bits, p_bits(d, gradient, residual, i));
  for (; i < end; ++i) last |= hn::GetLane(p_bits(lane, gradient, residual, i));
  return last != 0 || !hn::AllTrue(du, hn::Eq(bits, hn::Zero(du)));
}

uint32_t mark_units(const float* gradient, const float* residual, size_t n, size_t width, uint64_t* bits) {
  uint32_t count = 0;
  if (width == 1) {
    const auto marks = [&](auto d, size_t i) HWY_ATTR {
      prefetch_behind(d, gradient, residual, i);
      const hn::RebindToUnsigned<decltype(d)> du;
      return bits_of(du, hn::Ne(p_bits(d, gradient, residual, i), hn::Zero(du)));
    };
    for_words(n, marks, [&](size_t i, uint64_t word) HWY_ATTR {
      bits[i / 64] = word;
      count += static_cast<uint32_t>(std::popcount(word));
    });
    return count;
  }
  const size_t units = (n + width - 1) / width;
  for (size_t first = 0; first < units; first += 64) {
    uint64_t word = 0;
    for (size_t unit = first; unit < std::min(units, first + 64); ++unit) {
      const bool there = is_there(gradient, residual, unit * width, std::min(n, (unit + 1) * width));
      word |= uint64_t{there} << (unit - first);
    }
    bits[first / 64] = word;
    count += static_cast<uint32_t>(std::popcount(word));
  }
  return count;
}

uint32_t write_marked(const EncodeRun run, const uint64_t* bits, float* to) {
  const hn::CappedTag<float, 64> d;
  const hn::RebindToSigned<decltype(d)> di;
  constexpr size_t kLanes = hn::MaxLanes(decltype(d)());
  HWY_ALIGN float packed[64 + kLanes];  // a compressing store may write more behind its values
  auto largest = hn::Zero(di);
  uint32_t last = 0;
  for (size_t first = 0; first < run.n; first += 64) {
    const uint64_t word = bits[first / 64];
    if (word == 0) continue;
    if (first + 64 > run.n) {
      for (uint64_t left = word; left != 0; left &= left - 1) {
        const size_t i = first + static_cast<size_t>(std::countr_zero(left));
        const float p = run.residual == nullptr ? run.gradient[i] : run.gradient[i] + run.residual[i];
        *to = run.scale * p;
        last = std::max(last, std::bit_cast<uint32_t>(*to++) & kAbsBits);
      }
      break;
    }
    float* const at = word == ~uint64_t{0} ? to : packed;
    size_t count = 0;
    for (size_t j = 0; j < 64; j += hn::Lanes(d)) {
      const auto scaled = hn::Mul(load_p(d, run.gradient, run.residual, first + j), hn::Set(d, run.scale));
      const auto there = mask_at(d, reinterpret_cast<const uint8_t*>(&word), j);
      largest = hn::Max(largest, hn::IfThenElseZero(hn::RebindMask(di, there), abs_bits(d, scaled)));
      if (at == to) {
        hn::StoreU(scaled, d, to + j);
      } else {
        count += hn::CompressStore(scaled, there, d, packed + count);
      }
    }
    if (at == to) {
      to += 64;
    } else {
      std::memcpy(to, packed, count * sizeof(float));
      to += count;
    }
  }
  return std::max(last, static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(di, largest))));
}

void begin_sums(const float* values, size_t n, float* sums) {
  for_vectors(
      n, [&](auto d, size_t i) HWY_ATTR { hn::StoreU(hn::Add(hn::Zero(d), hn::LoadU(d, values + i)), d, sums + i); });
}

void add_values(const float* values, size_t n, float* sums) {
  for_vectors(n, [&](auto d, size_t i)
                     HWY_ATTR { hn::StoreU(hn::Add(hn::LoadU(d, sums + i), hn::LoadU(d, values + i)), d, sums + i); });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradtune::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradtune::compress {

HWY_EXPORT(mark_units);
HWY_EXPORT(write_marked);
HWY_EXPORT(begin_sums);
HWY_EXPORT(add_values);

uint32_t mark_units(const float* gradient, const float* residual, size_t n, size_t width, uint64_t* bits) {
  return HWY_DYNAMIC_DISPATCH(mark_units)(gradient, residual, n, width, bits);
}

uint32_t write_marked(const EncodeRun& run, const uint64_t* bits, float* to) {
  return HWY_DYNAMIC_DISPATCH(write_marked)(run, bits, to);
}

void begin_sums(const float* values, size_t n, float* sums) { HWY_DYNAMIC_DISPATCH(begin_sums)(values, n, sums); }

void add_values(const float* values, size_t n, float* sums) { HWY_DYNAMIC_DISPATCH(add_values)(values, n, sums); }

}  // namespace gradtune::compress
#endif
