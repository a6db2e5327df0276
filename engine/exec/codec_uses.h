// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// How much of their payloads compressors would use for a job's own gradients, where payloads need not be full: so step
// times can be predicted before a compressor has run.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/core/compressor.h"
#include "engine/core/gradient_table.h"
#include "engine/exec/memory.h"

namespace gradtune::exec {

class Device;

// Of a sample of the gradients in the arenas: a million elements at most, of pieces that are spread evenly over all of
// them. Takes a few milliseconds for each compressor, on the calling thread. Nothing of sparse gradients, whose rows
// are not in the arenas; nor of compressors that leave out zeros: with these it depends on the tensor.
//
// Pieces of gradients on a device are copied to the host, behind what its queue of the calling thread was asked for,
// and waited for. One that is not there in time does not count: what hangs, the next step tells.
std::vector<core::CodecUse> codec_uses(const core::GradientTable& table, const Arenas& arenas,
                                       std::span<const core::CompressorSpec> codecs, Device* device = nullptr,
                                       int64_t timeout_ms = 10'000);

}  // namespace gradtune::exec
