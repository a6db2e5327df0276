// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/momentum_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/compress/momentum_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "engine/compress/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradtune::compress::HWY_NAMESPACE {

void update_block(const Momentum& block) {
  const Momentum of = block;  // what the compiler keeps in registers no store can change
  for_vectors(of.n, [&](auto d, size_t i) HWY_ATTR {
    prefetch_p(d, of.gradient, of.before, i + kAhead);
    const auto kept = hn::Mul(hn::LoadU(d, of.before + i), hn::Set(d, of.decay));
    const auto added = hn::Mul(load_p(d, of.gradient, of.residual, i), hn::Set(d, of.gain));
    hn::StoreU(hn::Add(kept, added), d, of.next + i);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradtune::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradtune::compress {

HWY_EXPORT(update_block);

void update_momentum(const Momentum& block) { HWY_DYNAMIC_DISPATCH(update_block)(block); }

}  // namespace gradtune::compress
#endif
