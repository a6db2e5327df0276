// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The anchor of benchmarks on memory: a kernel that reads and writes the same arrays as the measured code, and does
// nothing else. A share of it, measured in the same run, shows the distance from the limit. A share of memcpy does
// not, since it has another mix of reads and writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gradtune::bench {

// Elements that are handled together: this many bytes of each array, one array after the other.
inline constexpr int64_t kGroup = 512;

// Arrays that pass between memory and caches, with the bytes of a group in each: multiples of 64, as are the addresses.
struct Stream {
  struct Read {
    const std::byte* data;
    int64_t bytes;
    int64_t ahead = 0;  // groups: another part of an array that another pass has already read or written
  };
  struct Write {
    std::byte* data;
    int64_t bytes;
  };
  std::vector<Read> reads = {};
  std::vector<Write> writes = {};
  int64_t groups = 0;

  int64_t bytes() const;
};

// The form of the kernel. Streaming stores go past the caches and do not read the line that they write. Arrays may
// take turns within a group. The fastest form depends on the arrays and on the machine.
struct StreamForm {
  bool past_caches, takes_turns;
};
inline constexpr StreamForm kStreamForms[] = {{false, false}, {false, true}, {true, false}, {true, true}};

// For the groups [begin, end).
void run_stream(const Stream& stream, int64_t begin, int64_t end, const StreamForm& form);

}  // namespace gradtune::bench
