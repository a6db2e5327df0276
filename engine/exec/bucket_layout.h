// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The offsets of a bucket's buffers in memory of its own, and the sizes of those in memory that buckets share. Private
// to program.cc.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/exec/program.h"

namespace gradtune::exec {

// For each space, the bytes that a bucket needs of memory that buckets share. This memory is placed when all buckets
// are compiled; until then, offsets in it begin with 0.
struct SharedMemory {
  std::array<core::PerSpace<int64_t>, 2> scratch{};  // of codecs, by place
  // By position in the program: for the data that the collective there receives, if it is shared, and for a copy of it.
  std::vector<core::PerSpace<int64_t>> received;
};

class BucketLayout {
 public:
  // Offsets in the memory of payloads and staging, and in that of codecs' state.
  struct Offsets {
    core::PerSpace<int64_t> pool = {}, state = {};
  };

  // The bucket's own memory begins at `begins`. Its program has that many steps.
  BucketLayout(const Offsets& begins, size_t steps) : next_(begins) { shared_.received.resize(steps); }

  // Allocates memory of the bucket's own, and returns the offset.
  int64_t allocate(core::Space space, int64_t bytes) { return take(next_.pool[space], bytes); }
  int64_t allocate_state(core::Space space, int64_t bytes) { return take(next_.state[space], bytes); }

  // Notes that the bucket needs that many bytes of shared memory.
  void share_scratch(core::Place place, core::Space space, int64_t bytes) {
    int64_t& most = shared_.scratch[static_cast<size_t>(place)][space];
    most = std::max(most, aligned(bytes));
  }
  void share_received(size_t step, core::Space space, int64_t bytes) { shared_.received[step][space] = aligned(bytes); }

  const Offsets& ends() const { return next_; }
  const SharedMemory& shared() const { return shared_; }

 private:
  static int64_t take(int64_t& next, int64_t bytes) {
    const int64_t begin = next;
    next += aligned(bytes);
    return begin;
  }

  Offsets next_;
  SharedMemory shared_;
};

}  // namespace gradtune::exec
