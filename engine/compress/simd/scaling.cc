// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/simd/scaling.h"

#include <atomic>

#include "engine/compress/shared.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/compress/simd/scaling.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "engine/compress/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradtune::compress::HWY_NAMESPACE {

// Returns the bits of the largest |result|, where Inf and NaN are above all others. One loop processes all arrays
// with plain stores. The values were just read, so there is no need to write them past the caches. Streaming the
// zeros tile by tile, or prefetching lines, took up to three times as long on a machine with a large last-level
// cache.
uint32_t scale_all(float* values, const float* residual, float* residual_next, float factor, size_t n) {
  return largest_of(n, [&](auto d, size_t i) HWY_ATTR {
    const auto scaled = hn::Mul(load_p(d, values, residual, i), hn::Set(d, factor));
    hn::StoreU(scaled, d, values + i);
    if (residual_next != nullptr) hn::StoreU(hn::Zero(d), d, residual_next + i);
    return abs_bits(d, scaled);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradtune::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradtune::compress {

HWY_EXPORT(scale_all);

void scale(const Scaling& job, Queue& queue) {
  core::check((job.residual == nullptr) == (job.residual_next == nullptr), "a residual has a next one");
  const auto n = static_cast<int64_t>(job.values.size());
  Largest largest;
  for_ranges(host(queue), n, task_elements(n), [&](int64_t begin, int64_t end) {
    largest.add(HWY_DYNAMIC_DISPATCH(scale_all)(job.values.data() + begin, offset(job.residual, begin),
                                                offset(job.residual_next, begin), job.factor,
                                                static_cast<size_t>(end - begin)));
  });
  if (largest.get() >= kInfinityBits) job.verdict->nonfinite = 1;
}

void scale(const DoubleScaling& job, Queue& queue) {
  const auto n = static_cast<int64_t>(job.values.size());
  std::atomic<bool> is_finite = true;
  for_ranges(host(queue), n, task_elements(n), [&](int64_t begin, int64_t end) {
    double sum = 0;  // of zeros, unless a value is not finite
    for (int64_t i = begin; i < end; ++i) {
      double& value = job.values[static_cast<size_t>(i)];
      value *= job.factor;
      sum += value * 0;
    }
    if (sum != 0) is_finite = false;
  });
  if (!is_finite) job.verdict->nonfinite = 1;
}

}  // namespace gradtune::compress
#endif
