// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs and checks a step of a fleet on random gradients. Every rank must end with the same bits. By the option's
// compressors it also checks one of two conditions. Either the fp64 ledger over all ranks balances (what was applied
// and is kept equals what was there before, I2), or the average is within the rounding that the program does.
#pragma once

#include <string>

#include "tests/engine/exec/fleet.h"

namespace gradtune::exec {

// `option` is the printed form of the option of all buckets in the strategy in force. Expectations are GoogleTest's.
void checked_step(Fleet& fleet, const core::GradientTable& table, const std::string& option, core::Rng& rng);

}  // namespace gradtune::exec
