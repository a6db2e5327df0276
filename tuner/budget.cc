// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/budget.h"

#include <algorithm>

namespace gradtune::tuner {
namespace {

// The share is taken of at least this many baseline steps, because a job pays for tuning at its beginning.
constexpr double kShortestJob = 200;

}  // namespace

void Budget::count(const core::StepReport& report, bool is_ours) {
  ++steps_;
  if (report.excluded && !is_ours) return;
  counted_.push_back({report.step_ms, report.excluded});
  if (baseline_ms_ > 0) add(counted_.size() - 1);
}

// In a long step the time beyond a stall only counts if the step before or after was as long.
double Budget::counted_ms(size_t step, double baseline_ms) const {
  const auto is_long = [&](size_t i) {
    return i < counted_.size() && !counted_[i].is_preparation && counted_[i].ms > kStall * baseline_ms;
  };
  const bool is_stall = is_long(step) && !is_long(step + 1) && !(step > 0 && is_long(step - 1));
  return is_stall ? kStall * baseline_ms : counted_[step].ms;
}

void Budget::add(size_t step) {
  // correction, now that this step is known
  const double late_ms = step > 0 ? counted_ms(step - 1, baseline_ms_) - last_ms_ : 0;
  last_ms_ = counted_ms(step, baseline_ms_);
  elapsed_ms_ += late_ms + last_ms_;
  lost_ms_ += late_ms + last_ms_ - baseline_ms_;
}

void Budget::learn_baseline(double baseline_ms) {
  const bool is_first = baseline_ms_ == 0;
  baseline_ms_ = baseline_ms;
  for (size_t step = 0; is_first && step < counted_.size(); ++step) add(step);
}

bool Budget::allows(int more_steps) const {
  return steps_ + more_steps < most_steps_ &&
         lost_ms_ <= most_share_ * std::max(elapsed_ms_, kShortestJob * baseline_ms_);
}

double Budget::most_cost_ms(double most_share, double baseline_ms) { return most_share * kShortestJob * baseline_ms; }

double Budget::cost_ms(double baseline_ms) const {
  double cost_ms = 0;
  for (size_t step = 0; step < counted_.size(); ++step) {
    cost_ms += std::max(0.0, counted_ms(step, baseline_ms) - baseline_ms);
  }
  return cost_ms;
}

}  // namespace gradtune::tuner
