// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Answers to findings about compression, in any phase: a bucket that exceeds its error budget, whose residual runs
// away or which is broken (error_budget.h), and gradients that stay not finite. The rules are in tuner.h. It bans the
// strategy, and leads to the phase that follows if the strategy in force or its winner is out. Ranks look for the
// findings; this only answers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/measurement.h"
#include "tuner/next_phase.h"

namespace gradtune::tuner {

struct Context;

class Guard {
 public:
  // Call once for every report, before check().
  void count(const core::StepReport& report) { nonfinite_steps_ = report.finite ? 0 : nonfinite_steps_ + 1; }

  // Answers the finding of a report, if it has one. A second call for the same report does nothing.
  NextPhase check(Context& context, const Phase& phase, const core::StepReport& report);

 private:
  bool has_warned_ = false;  // about the pinned strategy
  int nonfinite_steps_ = 0;  // consecutive ones
};

}  // namespace gradtune::tuner
