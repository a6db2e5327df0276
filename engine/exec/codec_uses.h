// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Measures the share of their payloads that compressors use for a job's own gradients, if payloads need not be full.
// With it, step times can be predicted before a compressor has run.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/core/compressor.h"
#include "engine/core/gradient_table.h"
#include "engine/exec/memory.h"

namespace gradtune::exec {

class Device;

// Uses a sample of the gradients in the arenas: at most a million elements, in pieces that are spread evenly over
// all of them. It takes a few milliseconds for each compressor, on the calling thread. It skips sparse gradients,
// whose rows are not in the arenas. It also skips compressors that leave out zeros, because their use depends on the
// tensor.
//
// Pieces of gradients on a device are copied to the host, after the work already queued on the calling thread's
// queue, and waited for. A piece that does not arrive in time does not count; the next step reports a device that
// hangs.
std::vector<core::CodecUse> codec_uses(const core::GradientTable& table, const Arenas& arenas,
                                       std::span<const core::CompressorSpec> codecs, Device* device = nullptr,
                                       int64_t timeout_ms = 10'000);

}  // namespace gradtune::exec
