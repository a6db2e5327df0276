// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests a compressor in the space where it is to run, before a strategy uses it: a faulty compiler or device shows
// here, and not in the training.
#pragma once

#include <cstdint>

#include "engine/compress/compressor.h"
#include "engine/core/result.h"
#include "engine/exec/memory.h"

namespace gradtune::exec {

// The memory in which the compressor works; null: memory of the host.
struct SelfTestMemory {
  Allocator* device = nullptr;
  Allocator* pinned = nullptr;  // of the host, to copy from and to
};

// Encodes and decodes 1,000 small numbers, in all rounds, and waits for the result. Returns an error (corrupt) if
// the compressor rejects its own payload, or calls these numbers non-finite.
core::Status self_test(const compress::Compressor& codec, compress::Queue& queue, const SelfTestMemory& memory,
                       int64_t timeout_ms);

}  // namespace gradtune::exec
