// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The memory of the payloads at hand while a bucket's program is compiled. Payloads are of equal size, one after the
// other, and the current ones lie in one space. If a collective added up a copy of them, the other space has a buffer
// for them too. Private to program.cc.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/exec/bucket_layout.h"
#include "engine/exec/program.h"

namespace gradtune::exec {

class PayloadBuffers {
 public:
  explicit PayloadBuffers(BucketLayout& layout) : layout_(layout) {}

  core::Space space() const { return space_; }
  int64_t part_bytes() const { return part_bytes_; }
  int64_t bytes() const { return part_bytes_ * parts_; }  // of all payloads
  int64_t offset(int64_t number) const { return begin_[space_] + number * part_bytes_; }
  Address address() const { return in_pool(space_, begin_[space_]); }

  // An encode makes payloads there.
  void make(core::Space space, int64_t part_bytes, size_t parts);
  // The payloads move on to new memory in their space.
  void renew() { begin_[space_] = allocate(); }
  // A collective receives that many payloads. The memory is the bucket's own, or shared by those that `step` receives.
  void receive(size_t parts, std::optional<size_t> step);
  // The payloads are needed in that space. Returns false if they are there already; otherwise they have to be copied
  // from their former address.
  bool bring(core::Space space);

 private:
  int64_t allocate();  // for the payloads, in their space

  BucketLayout& layout_;
  core::Space space_{};
  core::PerSpace<int64_t> begin_{};
  core::PerSpace<bool> exists_{};
  std::optional<size_t> shared_by_;  // the step that received the payloads into shared memory
  int64_t part_bytes_ = 0, parts_ = 0;
};

}  // namespace gradtune::exec
