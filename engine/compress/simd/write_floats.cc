// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/simd/write_floats.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/compress/simd/write_floats.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "engine/compress/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradtune::compress::HWY_NAMESPACE {

void stream_floats(const float* from, float* to, size_t n) {
  stream(from, to, n * sizeof(float));
  hwy::FlushStream();
}

// Copies and clears a line at a time: stores of zeros go on while the streamed line waits for memory.
void move_floats(float* from, float* to, size_t n) {
  const hn::CappedTag<float, 16> d;
  const size_t first = std::min(n, -reinterpret_cast<uintptr_t>(to) % 64 / sizeof(float));
  size_t i = first;
  std::copy_n(from, first, to);
  std::fill_n(from, first, 0.0F);
  for (; i + 16 <= n; i += 16) {
    for (size_t j = i; j < i + 16; j += hn::Lanes(d)) {
      hn::Stream(hn::LoadU(d, from + j), d, to + j);
      hn::StoreU(hn::Zero(d), d, from + j);
    }
  }
  std::copy(from + i, from + n, to + i);
  std::fill(from + i, from + n, 0.0F);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradtune::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradtune::compress {

HWY_EXPORT(stream_floats);
HWY_EXPORT(move_floats);

void write_floats(const float* from, float* to, size_t n, bool past_caches) {
  if (past_caches) {
    HWY_DYNAMIC_DISPATCH(stream_floats)(from, to, n);
  } else {
    std::copy_n(from, n, to);
  }
}

void stream_and_clear(float* from, float* to, size_t n) { HWY_DYNAMIC_DISPATCH(move_floats)(from, to, n); }

}  // namespace gradtune::compress
#endif
