// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Momentum, tile by tile. Compiled once per target by Highway, as simd-inl.h is.
#if defined(GRADTUNE_ENGINE_COMPRESS_MOMENTUM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADTUNE_ENGINE_COMPRESS_MOMENTUM_INL_H_
#undef GRADTUNE_ENGINE_COMPRESS_MOMENTUM_INL_H_
#else
#define GRADTUNE_ENGINE_COMPRESS_MOMENTUM_INL_H_
#endif

#include "engine/compress/simd/momentum.h"
#include "engine/compress/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradtune::compress::HWY_NAMESPACE {

// to = the next momentum, with p = gradient + residual, for a tile.
HWY_INLINE void update_momentum(const float* before, float decay, const float* gradient, const float* residual,
                                size_t n, float* to) {
  for_vectors(n, [&](auto d, size_t i) HWY_ATTR {
    prefetch_behind(d, gradient, residual, i);
    prefetch_behind(d, before, i);
    const auto kept = hn::Mul(hn::LoadU(d, before + i), hn::Set(d, decay));
    const auto added = hn::Mul(load_p(d, gradient, residual, i), hn::Set(d, 1 - decay));
    hn::StoreU(hn::Add(kept, added), d, to + i);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradtune::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
