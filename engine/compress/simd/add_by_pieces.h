// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Decoding of sparse payloads: values are added to a result piece by piece, and each piece stays in the cache until
// it is complete.
#pragma once

#include <hwy/cache_control.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "engine/compress/shared.h"
#include "engine/compress/simd/write_floats.h"

namespace gradtune::compress {

// Elements of a piece: half a block, so that the sums of a whole block fit the L1 cache.
inline constexpr int64_t kPieceElements = kBlockElements / 2;

// Decodes piece by piece: body(begin, end, sums, write) adds the payloads' values of [begin, end), at most one piece,
// to `sums`. The sums begin as zeros, or as the contents of `out` if the job accumulates. One thread makes a block's
// pieces, one after the other. A large result is made in the cache and streamed to memory while the next piece is
// made. For that, body calls write(elements) now and then, which writes that many elements of the previous piece.
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
  // Whole cache lines are written, except at the end of a piece.
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
