// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Whether a compressor works where it is to run, tried before a strategy that uses it: a compiler or a device that is
// wrong shows here, and not in what is trained.
#pragma once

#include <cstdint>

#include "engine/compress/compressor.h"
#include "engine/core/result.h"
#include "engine/exec/memory.h"

namespace gradtune::exec {

// Where it works; null: memory of the host.
struct SelfTestMemory {
  Allocator* device = nullptr;
  Allocator* pinned = nullptr;  // of the host, to copy from and to
};

// Encodes and decodes 1,000 small numbers, in all rounds, and waits for it. An error (corrupt) where the compressor
// rejects its own payload, or calls these numbers non-finite.
core::Status self_test(const compress::Compressor& codec, compress::Queue& queue, const SelfTestMemory& memory,
                       int64_t timeout_ms);

}  // namespace gradtune::exec
