// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/simd/shared_random_kernels.h"

#include <algorithm>
#include <cstring>

#include "engine/compress/shared.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/compress/simd/shared_random_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "engine/compress/simd/random-inl.h"
#include "engine/compress/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradtune::compress::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

void draw_words(const Random& random, const SharedElements& elements, uint32_t* words) {
  for (size_t i = 0; i < elements.n; ++i) {
    const auto element = elements.first + static_cast<int64_t>(i) * elements.step;
    std::ranges::copy(shared_random(random, element), words + kSharedWords * i);
  }
}

void draw_strata(const Random& random, const SharedStrata& strata, int64_t* drawn) {
  for (size_t i = 0; i < kSharedWords * strata.words_of; ++i) {
    const auto before = static_cast<int64_t>(i) * strata.size;
    const auto of_first = static_cast<int64_t>(i / kSharedWords * kSharedWords) * strata.size;
    const uint32_t word = shared_random(random, strata.element + of_first)[i % kSharedWords];
    drawn[i] = strata.begin + before + static_cast<int64_t>(uint64_t{word} * static_cast<uint64_t>(strata.size) >> 32);
  }
}

#else

using D = hn::CappedTag<uint64_t, 8>;
using V = hn::Vec<D>;

// Lanes first, first + step, and so on, made in registers. A vector that is loaded where its lanes were just stored
// has to wait for all earlier stores, and these may be a tile on its way to memory.
HWY_INLINE V in_steps(int64_t first, int64_t step) {
  const D d;
  const hn::RepartitionToNarrow<D> d32;
  const auto each = static_cast<uint64_t>(step);
  const auto lane = hn::BitCast(d32, hn::Iota(d, 0));
  const auto high = hn::MulEven(lane, hn::Set(d32, static_cast<uint32_t>(each >> 32)));
  const V offset = hn::Add(hn::MulEven(lane, hn::Set(d32, static_cast<uint32_t>(each))), hn::ShiftLeft<32>(high));
  return hn::Add(offset, hn::Set(d, static_cast<uint64_t>(first)));
}

// Draws the words of the elements in the lanes of x0, into the low halves of x0 to x3.
HWY_INLINE void draw(const Random& random, const PhiloxKeys& keys, V& x0, V& x1, V& x2, V& x3) {
  const D d;
  x1 = hn::Set(d, uint64_t{random.step});
  x2 = hn::ShiftRight<32>(x0);
  x3 = hn::Set(d, uint64_t{random.use | kSharedUse});
  for (int round = 0; round < core::kPhiloxRounds; ++round) philox_round(d, keys, round, x0, x1, x2, x3);
}

void draw_words(const Random& random, const SharedElements& elements, uint32_t* words) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  V element = in_steps(elements.first, elements.step);
  const PhiloxKeys keys(random.seed);
  HWY_ALIGN uint64_t rest[2 * hn::MaxLanes(d)];
  for (size_t i = 0; i < elements.n; i += lanes) {
    V x0 = element, x1, x2, x3;
    draw(random, keys, x0, x1, x2, x3);
    const bool is_whole = i + lanes <= elements.n;
    auto* const to = is_whole ? reinterpret_cast<uint64_t*>(words + kSharedWords * i) : rest;
    hn::StoreInterleaved2(philox_pair(d, x0, x1), philox_pair(d, x2, x3), d, to);
    if (!is_whole) std::memcpy(words + kSharedWords * i, rest, (elements.n - i) * kSharedWords * sizeof(uint32_t));
    element = hn::Add(element, hn::Set(d, static_cast<uint64_t>(elements.step) * lanes));
  }
}

void draw_strata(const Random& random, const SharedStrata& strata, int64_t* drawn) {
  const D d;
  const hn::RepartitionToNarrow<D> d32;
  const size_t lanes = hn::Lanes(d);
  const int64_t step = static_cast<int64_t>(kSharedWords) * strata.size;
  V element = in_steps(strata.element, step), begin = in_steps(strata.begin, step);
  const V steps = hn::Set(d, static_cast<uint64_t>(step) * lanes),
          size = hn::Set(d, static_cast<uint64_t>(strata.size));
  const PhiloxKeys keys(random.seed);
  HWY_ALIGN uint64_t rest[kSharedWords * hn::MaxLanes(d)];
  for (size_t i = 0; i < strata.words_of; i += lanes) {
    V x0 = element, x1, x2, x3;
    draw(random, keys, x0, x1, x2, x3);
    V at = begin;
    const auto next = [&](V word) HWY_ATTR {
      const V of_stratum = hn::MulEven(hn::BitCast(d32, word), hn::BitCast(d32, size));
      const V element_drawn = hn::Add(at, hn::ShiftRight<32>(of_stratum));
      at = hn::Add(at, size);
      return element_drawn;
    };
    const V first = next(x0), second = next(x1), third = next(x2), fourth = next(x3);
    const bool is_whole = i + lanes <= strata.words_of;
    auto* const to = is_whole ? reinterpret_cast<uint64_t*>(drawn + kSharedWords * i) : rest;
    hn::StoreInterleaved4(first, second, third, fourth, d, to);
    if (!is_whole) {
      std::memcpy(drawn + kSharedWords * i, rest, (strata.words_of - i) * kSharedWords * sizeof(uint64_t));
    }
    element = hn::Add(element, steps);
    begin = hn::Add(begin, steps);
  }
}

#endif

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradtune::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradtune::compress {

HWY_EXPORT(draw_words);
HWY_EXPORT(draw_strata);

void shared_random_of(const Random& random, const SharedElements& elements, uint32_t* words) {
  HWY_DYNAMIC_DISPATCH(draw_words)(random, elements, words);
}

void draw_from_strata(const Random& random, const SharedStrata& strata, int64_t* drawn) {
  HWY_DYNAMIC_DISPATCH(draw_strata)(random, strata, drawn);
}

}  // namespace gradtune::compress
#endif
