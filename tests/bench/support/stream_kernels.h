// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The anchors of benchmarks on memory: kernels that read and write as many bytes per element as what is measured, and
// do nothing else. A share of such a kernel, measured in the same run, says how far from the limit something is; a
// share of memcpy does not, since it has another mix of reads and writes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradtune::bench {

// Arrays that are read and written, by their width: bytes per element, 0 (no such array), 2 or 4.
struct Mix {
  int read[2];
  int write[2];

  bool operator==(const Mix&) const = default;
};

struct Arrays {
  const std::byte* read[2];
  std::byte* write[2];  // 64-byte aligned
};

// For the elements [begin, end), both multiples of 64. `streamed`: with stores that go past the caches. The mix must be
// one of those that stream_kernels.cc lists.
void run_stream(const Mix& mix, const Arrays& arrays, size_t begin, size_t end, bool streamed);

}  // namespace gradtune::bench
