// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Decisions as sentences for people. All texts use these: lines on standard error, results, summaries and reports.
// It leaves open who is told of which decision.
#pragma once

#include <string>
#include <string_view>

#include "tuner/decision.h"
#include "tuner/standing.h"

namespace gradtune::tuner {

// Without a full stop and without the step: "steps take 25 % longer than before".
std::string in_words(const Decision& decision);

// The state of the job, and what led to it: "committed bf16 all_reduce, 8 buckets: 228.1 -> 104.3 ms a step, gain
// 54.3 % (at least 53.1 % with 96 % confidence), baseline bf16 all_reduce; tuning took 210 steps and cost 1.90 s
// (0.42 % of 2000 baseline steps)".
std::string in_words(const Standing& standing);

// A finding of the error guard, without the strategy's name: "its residual runs away (bucket 3: 12, allowed 10)".
std::string finding_in_words(const Decision& decision);

// The work of the tuner in that stage: "racing the best".
std::string_view doing(Stage stage);

}  // namespace gradtune::tuner
