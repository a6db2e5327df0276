// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Decoding of sparse payloads: what they have is added to a result that is nowhere but in the cache meanwhile.
#pragma once

#include <hwy/cache_control.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "engine/compress/shared.h"
#include "engine/compress/write_floats.h"

namespace gradtune::compress {

// Elements that are written at once, so that memory has work to do while what follows is computed.
inline constexpr int64_t kPieceElements = 1024;

// Decodes block by block: body(begin, end, sums, done) adds what payloads have of the elements [begin, end) to sums, which
// are zeros, or what is in `out` where that is added to. It says done(first, last) of elements whose sums are complete,
// piece by piece in ascending order. A large result is made in the cache and then streamed to memory.
template <typename Body>
void add_by_blocks(const Decode& job, Queue& queue, Body&& body) {
  const auto n = static_cast<int64_t>(job.out.size());
  const bool streamed = n * 4 >= kStreamBytes;
  if (!streamed) {
    for_ranges(queue, n, kBlockElements, [&](int64_t begin, int64_t end) {
      float* const sums = job.out.data() + begin;
      if (!job.accumulate) std::fill_n(sums, end - begin, 0.0F);
      body(begin, end, sums, [](int64_t /*first*/, int64_t /*last*/) {});
    });
    return;
  }
  for_ranges(queue, n, task_elements(n), [&](int64_t from, int64_t to) {
    alignas(64) float tile[kBlockElements] = {};
    for (int64_t begin = from; begin < to; begin += kBlockElements) {
      const int64_t end = std::min(to, begin + kBlockElements);
      if (job.accumulate) std::copy_n(job.out.data() + begin, end - begin, tile);
      body(begin, end, tile, [&](int64_t first, int64_t last) {
        // Zeros in a pass of their own cost 20 %.
        stream_and_clear(tile + (first - begin), job.out.data() + first, static_cast<size_t>(last - first));
      });
    }
    hwy::FlushStream();
  });
}

}  // namespace gradtune::compress
