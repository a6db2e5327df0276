// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The phase between tunings: the decided strategy runs, and its steps are watched. An alarm, the clock, or new
// knowledge of the job ends it (AuditClock decides when). No blocks are on the schedule.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/core/gradient_table.h"
#include "engine/core/measurement.h"
#include "tuner/next_phase.h"
#include "tuner/schedule.h"

namespace gradtune::tuner {

struct Context;

class Watching {
 public:
  // The strategy that stays: the committed one, or the baseline.
  explicit Watching(int32_t slot) : slot_(slot) {}

  // Ends the tuning whose last phase that is: its cost is settled, the strategy is announced, and all others lose
  // their slots. The core calls it while `last` is still the present phase.
  void conclude(Context& context, const Phase& last) const;

  NextPhase begin(Context&);
  NextPhase advance(Context&, const std::vector<Score>&);
  double progress(size_t) const { return 1; }

  // Call for every step, in place of advance().
  NextPhase watch(Context& context, const core::StepReport& report) const;

  // Notes if the content of gradients differs from the known one: step times may not show it.
  void compare_content(Context& context, const core::GradientTable& table) const;

 private:
  int32_t slot_;
};

// Checks if another strategy is the best by now, once it is time to look. Otherwise the decision stays.
NextPhase look_again(Context& context);

}  // namespace gradtune::tuner
