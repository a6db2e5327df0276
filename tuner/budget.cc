// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/budget.h"

#include <algorithm>

namespace gradtune::tuner {
namespace {

// The share is taken of at least so many baseline steps: tuning stands at a job's beginning, and its cost with it.
constexpr double kShortestJob = 200;

}  // namespace

void Budget::count(const core::StepReport& report, bool is_ours) {
  ++steps_;
  if (report.excluded && !is_ours) return;
  steps_ms_.push_back(report.step_ms);
  elapsed_ms_ += report.step_ms;
  if (baseline_ms_ > 0) lost_ms_ += report.step_ms - baseline_ms_;
}

void Budget::learn_baseline(double baseline_ms) {
  if (baseline_ms_ == 0) lost_ms_ = elapsed_ms_ - static_cast<double>(steps_ms_.size()) * baseline_ms;
  baseline_ms_ = baseline_ms;
}

bool Budget::allows(int more_steps) const {
  return steps_ + more_steps < most_steps_ &&
         lost_ms_ <= most_share_ * std::max(elapsed_ms_, kShortestJob * baseline_ms_);
}

double Budget::most_cost_ms(double most_share, double baseline_ms) { return most_share * kShortestJob * baseline_ms; }

double Budget::cost_ms(double baseline_ms) const {
  double cost_ms = 0;
  for (double step_ms : steps_ms_) cost_ms += std::max(0.0, step_ms - baseline_ms);
  return cost_ms;
}

}  // namespace gradtune::tuner
