// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What compressors lost in one step in the trainings by which they are in a default list: column `error` of the table
// of accuracies (tests/bench/results). Far beyond it, that table says nothing of a job. Leaves open what far is.
#pragma once

#include <optional>

#include "engine/core/compressor.h"

namespace gradtune::tuner {

// norm(p - decode(encode(p))) / norm(p) of the bucket of which it was largest, in all trainings (core::BucketLoss).
// Nothing of compressors that lose nothing, or with a setting that was not trained.
std::optional<double> seen_error(const core::CompressorSpec& codec);

}  // namespace gradtune::tuner
