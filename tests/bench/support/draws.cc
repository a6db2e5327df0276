// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/support/draws.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/bench/support/draws.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "engine/compress/simd/random-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradtune::compress::HWY_NAMESPACE {

void draw_tiles(int64_t begin, int64_t end) {
  RandomTile<> random({});
  uint16_t last = 0;
  for (; begin < end; begin += kTile) {
    const size_t count = std::min(kTile, static_cast<size_t>(end - begin));
    last = random.bits(static_cast<uint64_t>(begin), count)[count - 1];
  }
  [[maybe_unused]] const volatile uint16_t used = last;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradtune::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradtune::compress {
HWY_EXPORT(draw_tiles);
}
namespace gradtune::bench {

void draw(int64_t begin, int64_t end) {
  using namespace compress;
  HWY_DYNAMIC_DISPATCH(draw_tiles)(begin, end);
}

}  // namespace gradtune::bench
#endif
