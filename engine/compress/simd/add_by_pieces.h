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
#include "engine/compress/simd/write_floats.h"

namespace gradtune::compress {

// Elements of which the sums are made at once: half a block, so that those of a whole one fit the L1 cache.
inline constexpr int64_t kPieceElements = kBlockElements / 2;

// Decodes piece by piece: body(begin, end, sums, write) adds what payloads have of the elements [begin, end), which are
// no more than a piece, to sums, which are zeros, or what is in `out` where that is added to. A block's pieces are made
// by the same thread, one after the other. A large result is made in the cache and streamed to memory while the next
// piece is made: body says write(elements) now and then, as it gets on, for as many elements of the piece before to be
// written.
template <typename Body>
void add_by_pieces(const Decode& job, HostQueue& queue, const Body& body) {
  const auto n = static_cast<int64_t>(job.out.size());
  if (n * 4 < kStreamBytes) {
    for_ranges(queue, n, kBlockElements, [&](int64_t from, int64_t to) {
      for (int64_t begin = from; begin < to; begin += kPieceElements) {
        const int64_t end = std::min(to, begin + kPieceElements);
        float* const sums = job.out.data() + begin;
        if (!job.accumulate) std::fill_n(sums, end - begin, 0.0F);
        body(begin, end, sums, [](int64_t /*elements*/) {});
      }
    });
    return;
  }
  // Whole cache lines are written, until a piece ends.
  constexpr int64_t kLine = 64 / sizeof(float);
  const auto in_line = static_cast<int64_t>(reinterpret_cast<uintptr_t>(job.out.data()) / sizeof(float) % kLine);
  for_ranges(queue, n, task_elements(n), [&](int64_t from, int64_t to) {
    alignas(64) float block[kBlockElements] = {};
    int64_t written = from, made = from;
    const auto write_until = [&](int64_t until) {
      if (until <= written) return;
      stream_and_clear(block + written % kBlockElements, job.out.data() + written,
                       static_cast<size_t>(until - written));
      written = until;
    };
    for (int64_t begin = from; begin < to; begin += kPieceElements) {
      const int64_t end = std::min(to, begin + kPieceElements), before = written;
      float* const sums = block + begin % kBlockElements;
      if (job.accumulate) std::copy_n(job.out.data() + begin, end - begin, sums);
      body(begin, end, sums, [&](int64_t elements) {
        write_until(std::min(made, (before + elements + in_line) / kLine * kLine - in_line));
      });
      write_until(made);
      made = end;
    }
    write_until(made);
    hwy::FlushStream();
  });
}

}  // namespace gradtune::compress
