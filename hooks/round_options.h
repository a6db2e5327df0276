// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Checks the options of training in rounds, for C++ and for Python.
#pragma once

#include <vector>

#include "gradtune/rounds.h"
#include "hooks/c10d/comparison.h"
#include "tuner/round_length.h"

namespace gradtune {

// Throws an error that names the first option whose value is not allowed, and the allowed values.
void check(const RoundOptions& rounds);

// For the comparison of ranks.
std::vector<SharedThing> describe(const RoundOptions& rounds);

// The rounds that they allow.
tuner::UpdatesARound allowed(const RoundOptions& rounds);

}  // namespace gradtune
