// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/support/stream_kernels.h"

#include "engine/core/result.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/bench/support/stream_kernels.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace gradtune::bench::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// 64 elements at a time: a number of whole cache lines of every array.
template <int r0, int r1, int w0, int w1, bool streamed>
void stream_mix(const Arrays& arrays, size_t begin, size_t end) {
  const hn::CappedTag<uint8_t, 64> d;
  const size_t step = hn::Lanes(d);
  auto seen = hn::Zero(d);  // of all that was read, so that it is
  const auto store = [&](std::byte* to, size_t i) HWY_ATTR {
    auto* bytes = reinterpret_cast<uint8_t*>(to) + i;
    if constexpr (streamed) {
      hn::Stream(seen, d, bytes);
    } else {
      hn::Store(seen, d, bytes);
    }
  };
  const auto load = [&](const std::byte* from, size_t i)
                        HWY_ATTR { seen = hn::Xor(seen, hn::LoadU(d, reinterpret_cast<const uint8_t*>(from) + i)); };
  for (size_t element = begin; element < end; element += 64) {
    for (size_t i = 0; i < 64 * r0; i += step) load(arrays.read[0], element * r0 + i);
    for (size_t i = 0; i < 64 * r1; i += step) load(arrays.read[1], element * r1 + i);
    for (size_t i = 0; i < 64 * w0; i += step) store(arrays.write[0], element * w0 + i);
    for (size_t i = 0; i < 64 * w1; i += step) store(arrays.write[1], element * w1 + i);
  }
  if (streamed) hwy::FlushStream();
  [[maybe_unused]] const volatile uint8_t used = hn::GetLane(seen);
}

template <int r0, int r1, int w0, int w1>
bool stream_if(const Mix& mix, const Arrays& arrays, size_t begin, size_t end, bool streamed) {
  if (mix != Mix{{r0, r1}, {w0, w1}}) return false;
  if (streamed) {
    stream_mix<r0, r1, w0, w1, true>(arrays, begin, end);
  } else {
    stream_mix<r0, r1, w0, w1, false>(arrays, begin, end);
  }
  return true;
}

bool stream_any(const Mix& mix, const Arrays& arrays, size_t begin, size_t end, bool streamed) {
  return stream_if<4, 0, 0, 0>(mix, arrays, begin, end, streamed) ||
         stream_if<0, 0, 4, 0>(mix, arrays, begin, end, streamed) ||
         stream_if<1, 0, 4, 0>(mix, arrays, begin, end, streamed) ||
         stream_if<1, 1, 4, 0>(mix, arrays, begin, end, streamed) ||
         stream_if<4, 0, 1, 0>(mix, arrays, begin, end, streamed) ||
         stream_if<4, 4, 1, 4>(mix, arrays, begin, end, streamed) ||
         stream_if<2, 0, 4, 0>(mix, arrays, begin, end, streamed) ||
         stream_if<2, 2, 4, 0>(mix, arrays, begin, end, streamed) ||
         stream_if<4, 0, 2, 0>(mix, arrays, begin, end, streamed) ||
         stream_if<4, 0, 4, 0>(mix, arrays, begin, end, streamed) ||
         stream_if<4, 4, 4, 0>(mix, arrays, begin, end, streamed) ||
         stream_if<4, 4, 2, 4>(mix, arrays, begin, end, streamed) ||
         stream_if<4, 4, 4, 4>(mix, arrays, begin, end, streamed);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradtune::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradtune::bench {

HWY_EXPORT(stream_any);

void run_stream(const Mix& mix, const Arrays& arrays, size_t begin, size_t end, bool streamed) {
  core::check(HWY_DYNAMIC_DISPATCH(stream_any)(mix, arrays, begin, end, streamed), "no stream kernel of this mix");
}

}  // namespace gradtune::bench
#endif
