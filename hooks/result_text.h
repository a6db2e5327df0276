// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The result of tuning for the program, and its text form, which rank 0 sends to the other ranks so that all report
// the same.
#pragma once

#include <string>

#include "engine/core/compressor.h"
#include "engine/core/result.h"
#include "gradtune/gradtune.h"
#include "tuner/driver/driver.h"
#include "tuner/standing.h"

namespace gradtune {

// All members except the prediction and the buckets of the strategy.
Optimizer::Result result_of(const tuner::Standing& standing, core::Fidelity fidelity);
// The present decision of a driver that was started, with its evidence.
Optimizer::Result result_of(const tuner::Driver& driver);

std::string to_text(const Optimizer::Result& result);
core::Result<Optimizer::Result> parse_result(const std::string& text);

}  // namespace gradtune
