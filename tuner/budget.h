// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Keeps the cost of tuning so far, and decides if it may cost more. It leaves open what happens when it may not.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/core/measurement.h"

namespace gradtune::tuner {

// A single step that takes longer than this many usual ones is an unannounced evaluation, or the machine stood
// still. No strategy is to blame, so it counts as this many.
constexpr double kStall = 10;

class Budget {
 public:
  // Tuning ends after this many steps, or once it has lost this share of the time so far against the baseline.
  Budget(int most_steps, double most_share) : most_steps_(most_steps), most_share_(most_share) {}

  // Counts a step of tuning. `is_ours`: an excluded step is one that prepared a strategy; other excluded steps do
  // not count. Only a part of a stall counts. Two long steps in a row are no stall but a slow strategy.
  void count(const core::StepReport& report, bool is_ours);

  // Sets the present step time of the baseline. Nothing counts as lost until it is known.
  void learn_baseline(double baseline_ms);

  bool allows(int more_steps = 0) const;
  int steps() const { return steps_; }
  double cost_ms(double baseline_ms) const;  // sum of max(0, step - baseline)

  // The most that tuning may cost while the baseline would run otherwise.
  static double most_cost_ms(double most_share, double baseline_ms);

 private:
  struct Step {
    double ms;
    bool is_preparation;
  };
  double counted_ms(size_t step, double baseline_ms) const;
  void add(size_t step);

  int most_steps_;
  double most_share_;
  int steps_ = 0;
  std::vector<Step> counted_;
  double last_ms_ = 0;  // the amount counted for the last step
  double elapsed_ms_ = 0, lost_ms_ = 0, baseline_ms_ = 0;
};

}  // namespace gradtune::tuner
