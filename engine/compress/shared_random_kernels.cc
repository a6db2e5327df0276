// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/shared_random_kernels.h"

#include <algorithm>
#include <cstring>

#include "engine/compress/shared.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/compress/shared_random_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "engine/compress/random-inl.h"
#include "engine/compress/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradtune::compress::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

void draw_all(const Random& random, const SharedElements& elements, uint32_t* words) {
  for (size_t i = 0; i < elements.n; ++i) {
    const auto element = elements.first + static_cast<int64_t>(i) * elements.step;
    std::ranges::copy(shared_random(random, element), words + kSharedWords * i);
  }
}

#else

// Positions are made in registers: a vector that is loaded where its lanes were just stored has to wait for all stores
// before, and before may be a tile on its way to memory.
void draw_all(const Random& random, const SharedElements& elements, uint32_t* words) {
  const hn::CappedTag<uint64_t, 8> d;
  const hn::RepartitionToNarrow<decltype(d)> d32;
  const size_t lanes = hn::Lanes(d);
  const auto step = static_cast<uint64_t>(elements.step);
  const auto lane = hn::BitCast(d32, hn::Iota(d, 0));
  const auto high = hn::MulEven(lane, hn::Set(d32, static_cast<uint32_t>(step >> 32)));
  auto position = hn::Add(hn::MulEven(lane, hn::Set(d32, static_cast<uint32_t>(step))), hn::ShiftLeft<32>(high));
  position = hn::Add(position, hn::Set(d, static_cast<uint64_t>(elements.first)));
  const PhiloxKeys keys(random.seed);
  HWY_ALIGN uint64_t rest[2 * hn::MaxLanes(d)];
  for (size_t i = 0; i < elements.n; i += lanes) {
    auto x0 = position, x1 = hn::Set(d, uint64_t{random.step}), x2 = hn::ShiftRight<32>(position);
    auto x3 = hn::Set(d, uint64_t{random.use | kSharedUse});
    for (int round = 0; round < core::kPhiloxRounds; ++round) philox_round(d, keys, round, x0, x1, x2, x3);
    const bool is_whole = i + lanes <= elements.n;
    auto* const to = is_whole ? reinterpret_cast<uint64_t*>(words + kSharedWords * i) : rest;
    hn::StoreInterleaved2(philox_pair(d, x0, x1), philox_pair(d, x2, x3), d, to);
    if (!is_whole) std::memcpy(words + kSharedWords * i, rest, (elements.n - i) * kSharedWords * sizeof(uint32_t));
    position = hn::Add(position, hn::Set(d, lanes * step));
  }
}

#endif

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradtune::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradtune::compress {

HWY_EXPORT(draw_all);

void shared_random_of(const Random& random, const SharedElements& elements, uint32_t* words) {
  HWY_DYNAMIC_DISPATCH(draw_all)(random, elements, words);
}

}  // namespace gradtune::compress
#endif
