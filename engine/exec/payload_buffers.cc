// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/payload_buffers.h"

namespace gradtune::exec {

void PayloadBuffers::make(core::Space space, int64_t part_bytes, size_t parts) {
  space_ = space;
  part_bytes_ = part_bytes;
  parts_ = static_cast<int64_t>(parts);
  exists_ = {};
  exists_[space] = true;
  shared_by_.reset();
  renew();
}

void PayloadBuffers::receive(size_t parts, std::optional<size_t> step) {
  parts_ = static_cast<int64_t>(parts);
  shared_by_ = step;
  begin_[space_] = allocate();
  exists_ = {};
  exists_[space_] = true;
}

bool PayloadBuffers::bring(core::Space space) {
  if (space_ == space) return false;
  space_ = space;
  if (!exists_[space]) begin_[space] = allocate();
  exists_[space] = true;
  return true;
}

int64_t PayloadBuffers::allocate() {
  if (!shared_by_) return layout_.allocate(space_, bytes());
  layout_.share_received(*shared_by_, space_, bytes());
  return 0;
}

}  // namespace gradtune::exec
