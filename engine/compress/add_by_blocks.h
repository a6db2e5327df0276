// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Decoding of sparse payloads: what they have is added to a result that is nowhere but in the cache meanwhile.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "engine/compress/shared.h"
#include "engine/compress/write_floats.h"

namespace gradtune::compress {

// Decodes block by block: body(begin, end, sums) adds what payloads have of the elements [begin, end) to sums, which are
// zeros, or what is in `out` where that is added to. A large result is made in the cache and then streamed to memory.
template <typename Body>
void add_by_blocks(const Decode& job, Queue& queue, Body&& body) {
  const auto n = static_cast<int64_t>(job.out.size());
  const bool streamed = n * 4 >= kStreamBytes;
  for_ranges(queue, n, kBlockElements, [&](int64_t begin, int64_t end) {
    alignas(64) float tile[kBlockElements];
    float* const place = job.out.data() + begin;
    float* const sums = streamed ? tile : place;
    if (!job.accumulate) std::fill_n(sums, end - begin, 0.0F);
    if (job.accumulate && streamed) std::copy_n(place, end - begin, sums);
    body(begin, end, sums);
    if (streamed) write_floats(sums, place, static_cast<size_t>(end - begin), /*past_caches=*/true);
  });
}

}  // namespace gradtune::compress
