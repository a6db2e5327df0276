// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/write_floats.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/compress/write_floats.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "engine/compress/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradtune::compress::HWY_NAMESPACE {

void stream_floats(const float* from, float* to, size_t n) {
  stream(from, to, n * sizeof(float));
  hwy::FlushStream();
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradtune::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradtune::compress {

HWY_EXPORT(stream_floats);

void write_floats(const float* from, float* to, size_t n, bool past_caches) {
  if (past_caches) {
    HWY_DYNAMIC_DISPATCH(stream_floats)(from, to, n);
  } else {
    std::copy_n(from, n, to);
  }
}

}  // namespace gradtune::compress
#endif
