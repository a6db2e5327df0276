// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// How much of their payloads compressors would use for a job's own gradients, where payloads need not be full: so step
// times can be predicted before a compressor has run.
#pragma once

#include <span>
#include <vector>

#include "engine/core/compressor.h"
#include "engine/core/gradient_table.h"
#include "engine/exec/memory.h"

namespace gradtune::exec {

// Of a sample of the gradients in the arenas: a piece of each of the largest tensors, which count by their sizes. Takes
// a few milliseconds for each compressor, on the calling thread. Nothing of gradients on a device, nor of sparse ones,
// whose rows are not in the arenas; nor of compressors that leave out zeros: with these it depends on the tensor.
std::vector<core::CodecUse> codec_uses(const core::GradientTable& table, const Arenas& arenas,
                                       std::span<const core::CompressorSpec> codecs);

}  // namespace gradtune::exec
