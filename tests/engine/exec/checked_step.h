// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A step of a fleet on random gradients, checked: every rank ends with the same bits, and by the option's compressors
// either the fp64 ledger over all ranks (what was applied and what is kept is what was there before, I2), or the
// average within the rounding that the program does.
#pragma once

#include <string>

#include "tests/engine/exec/fleet.h"

namespace gradtune::exec {

// `option` is the printed form of all buckets' option in the strategy in force. Expectations are GoogleTest's.
void checked_step(Fleet& fleet, const core::GradientTable& table, const std::string& option, core::Rng& rng);

}  // namespace gradtune::exec
