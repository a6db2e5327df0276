// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The spaces of one rank between steps: their allocators, and the queue that copies between them.
#pragma once

#include <cstdint>

#include "engine/compress/queue.h"
#include "engine/core/space.h"
#include "engine/exec/device.h"
#include "engine/exec/memory.h"

namespace gradtune::exec {

struct Spaces {
  Device* device = nullptr;      // null: everything is on the host
  int64_t timeout_ms = 300'000;  // the limit of copies

  Allocators allocators() const {
    if (device == nullptr) return {};
    return {{&device->pinned(), &device->memory()}};
  }
  // The queue of the calling thread; null without a device.
  compress::Queue* queue() const { return device == nullptr ? nullptr : &device->current(); }
};

}  // namespace gradtune::exec
