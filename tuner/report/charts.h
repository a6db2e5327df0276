// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The pictures of a report, each for a given width in CSS pixels, so that their text is as large on a phone as on a
// screen. Colours are never the only sign: shape, place or a letter says the same.
#pragma once

#include <string>

#include "tuner/report/report.h"

namespace gradtune::tuner {

// The role of a slot's strategy: a baseline, the chosen one, a former choice, or another candidate. It is also the
// name of its style.
std::string role_of(const Report& report, int32_t slot);
std::string role_of_label(const Report& report, const std::string& label);  // of a strategy that is no baseline

// "A", "B", ..., "Z", "AA", ...: names of a strategy's distinct options.
std::string letter(int kind);

// The events behind the numbers in the picture of steps, from 1: positions in `report.events`, the last ones if
// there are many.
std::vector<size_t> marked_events(const Report& report);

// Time of each step, stages above, numbered decisions below.
std::string steps_chart(const Report& report, double width);

// Arms against the baseline, with the blocks of each and an interval.
std::string race_chart(const Report& report, const RaceRecord& race, double width);

// Each pair of blocks.
std::string pairs_chart(const Report& report, const PairTest& test, double width);

// Size, option and place in the order of all buckets.
std::string bucket_chart(const Report& report, double width);

// A step before and one after, as measured, on one axis of time. Dashed lines are the claimed times.
std::string comparison_chart(const Report& report, double width);

// The exchange of each round as a share of the updates between, for a job in rounds.
std::string rounds_chart(const Report& report, double width);

// That share by the number of updates: as predicted, and as measured.
std::string round_length_chart(const Report& report, double width);

// The operations of a step, measured and predicted.
std::string step_chart(const Report& report, double width);

}  // namespace gradtune::tuner
