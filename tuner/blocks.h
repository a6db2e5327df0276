// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The blocks of the tuner's experiments: how many steps each kind has, and when it is cut short. Phases put them on
// the schedule.
#pragma once

#include <cstdint>
#include <vector>

#include "tuner/schedule.h"

namespace gradtune::tuner {

struct Context;

constexpr int kBlockSteps = 5;  // of a race; the first one, which may show the switch, is dropped

// The block of an imported strategy at the start of a job, before it is tested.
Block opening_block();

// The block of a single measurement.
Block trial_block(const Context& context, int32_t slot);

// The block of an arm of a race.
Block paired_block(const Context& context, int32_t slot);

// The block of a confirmation or an audit. All have one length: with skewed noise a shorter one would look slower.
Block tested_block(const Context& context, int32_t slot);

// Puts blocks of those slots on the schedule, in that order.
void run_pairs(Context& context, const std::vector<int32_t>& slots);  // of a race
void run_tests(Context& context, const std::vector<int32_t>& slots);  // of a confirmation or an audit

}  // namespace gradtune::tuner
