// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Calls of a compressor that are over when they return, on memory of the host: for self-tests, tests and benchmarks.
#pragma once

#include "engine/compress/compressor.h"

namespace gradtune::compress {

// Whether all was finite. The job's verdict is ignored.
[[nodiscard]] bool encode_now(const Compressor& compressor, Encode job, HostQueue& queue);

// The defect of the first payload that was rejected.
core::Status decode_now(const Compressor& compressor, Decode job, HostQueue& queue);

}  // namespace gradtune::compress
