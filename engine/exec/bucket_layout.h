// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The offsets of a bucket's buffers, in memory of its own or in memory that buckets share. Private to program.cc.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/exec/program.h"

namespace gradtune::exec {

// For each space, the offsets in the pools of the buffers that a bucket shares with others; or the sizes of these
// buffers in bytes.
struct SharedMemory {
  std::array<core::PerSpace<int64_t>, 2> scratch{};  // of codecs, by place
  // By position in the program: the buffer for the data that the collective there receives, if it is shared, and for
  // a copy of it.
  std::vector<core::PerSpace<int64_t>> brought;
};

class BucketLayout {
 public:
  // Offsets in the memory of payloads and staging, and in that of codecs' state.
  struct Offsets {
    core::PerSpace<int64_t> pool = {}, state = {};
  };

  // The bucket's own memory begins at `begins`, and its shared memory is at the offsets in `shared`, for a program
  // of `steps` steps.
  BucketLayout(const Offsets& begins, const SharedMemory& shared, size_t steps) : next_(begins), shared_(shared) {
    bytes_.brought.resize(steps);
  }

  // Allocates memory of the bucket's own, and returns the offset.
  int64_t allocate(core::Space space, int64_t bytes) { return take(next_.pool[space], bytes); }
  int64_t allocate_state(core::Space space, int64_t bytes) { return take(next_.state[space], bytes); }

  // Returns the offset of shared memory, and notes that the bucket needs that many bytes of it.
  int64_t scratch(core::Place place, core::Space space, int64_t bytes) {
    int64_t& most = bytes_.scratch[static_cast<size_t>(place)][space];
    most = std::max(most, aligned(bytes));
    return shared_.scratch[static_cast<size_t>(place)][space];
  }
  int64_t brought(size_t step, core::Space space, int64_t bytes) {
    bytes_.brought[step][space] = aligned(bytes);
    return shared_.brought[step][space];
  }

  const Offsets& ends() const { return next_; }
  const SharedMemory& shared_bytes() const { return bytes_; }

 private:
  static int64_t take(int64_t& next, int64_t bytes) {
    const int64_t begin = next;
    next += aligned(bytes);
    return begin;
  }

  Offsets next_;
  const SharedMemory& shared_;
  SharedMemory bytes_;
};

}  // namespace gradtune::exec
