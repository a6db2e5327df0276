// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Calls of a compressor that have completed when they return, on host memory: for self-tests, tests and benchmarks.
#pragma once

#include "engine/compress/compressor.h"

namespace gradtune::compress {

// True if all was finite. The job's own verdict is ignored.
[[nodiscard]] bool encode_now(const Compressor& compressor, Encode job, HostQueue& queue);

// Returns the defect of the first payload that was rejected.
core::Status decode_now(const Compressor& compressor, Decode job, HostQueue& queue);

}  // namespace gradtune::compress
