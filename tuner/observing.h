// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The phase that measures the baselines: at the start of a job, and again before a new search or a new look at the
// known strategies. It leaves the baseline that gains are measured against in the context, and then goes on to the
// work that it was started for. Observation has the statistics.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tuner/next_phase.h"
#include "tuner/observation.h"

namespace gradtune::tuner {

struct Context;

class Observing {
 public:
  enum class Before : uint8_t {
    opening,   // the imported strategy runs first, and nothing is measured yet
    imported,  // the imported strategy races the baseline next
    search,    // a search is next
    looking,   // after an alarm; the result decides if a new search starts
  };

  Observing(Before before, int32_t baselines) : before_(before), observation_(baselines) {}

  // Measures everything anew, as conditions have changed.
  static Observing again(Context& context, Before before);

  NextPhase begin(Context&);  // waits for the first report, unless it observes again
  NextPhase advance(Context& context, std::vector<Score> scores);
  double progress(size_t scored) const;

  // Takes the compute times of a step; call it for every step of the phase.
  void record(const core::StepReport& report) { observation_.record(report); }

  Before before() const { return before_; }

 private:
  void publish(Context& context) const;
  void run_baselines(Context& context) const;

  Before before_;
  Observation observation_;
};

}  // namespace gradtune::tuner
