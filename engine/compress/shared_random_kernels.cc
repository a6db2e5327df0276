// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/shared_random_kernels.h"

#include "engine/compress/shared.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/compress/shared_random_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "engine/compress/random-inl.h"
#include "engine/compress/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradtune::compress::HWY_NAMESPACE {

void draw_all(const Random& random, const int64_t* elements, size_t n, uint32_t* words) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::CappedTag<uint64_t, 8> d;
  const PhiloxKeys keys(random.seed);
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    auto x0 = hn::LoadU(d, reinterpret_cast<const uint64_t*>(elements + i));
    auto x1 = hn::Set(d, uint64_t{random.step}), x2 = hn::ShiftRight<32>(x0);
    auto x3 = hn::Set(d, uint64_t{random.use | kSharedUse});
    for (int round = 0; round < core::kPhiloxRounds; ++round) philox_round(d, keys, round, x0, x1, x2, x3);
    hn::StoreInterleaved2(philox_pair(d, x0, x1), philox_pair(d, x2, x3), d,
                          reinterpret_cast<uint64_t*>(words + kSharedWords * i));
  }
#endif
  for (; i < n; ++i) std::ranges::copy(shared_random(random, elements[i]), words + kSharedWords * i);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradtune::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradtune::compress {

HWY_EXPORT(draw_all);

void shared_random_of(const Random& random, const int64_t* elements, size_t n, uint32_t* words) {
  HWY_DYNAMIC_DISPATCH(draw_all)(random, elements, n, words);
}

}  // namespace gradtune::compress
#endif
