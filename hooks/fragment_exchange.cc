// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/fragment_exchange.h"

#include <array>

namespace gradtune {

FragmentExchange::FragmentExchange(Session& session, const OuterStep::Rates& rates)
    : session_(session), outer_(session.trained(), rates) {
  session_.on_averaged([this](const core::StepReport& report) {
    for (size_t p = 0; p < changes_.size(); ++p) session_.give_back(outer_.parameters()[p], changes_[p]);
    is_finite_ = outer_.step(changes_);
    report_ = report;
  });
}

void FragmentExchange::count_update() {
  ++unsent_updates_;
  ++updates_of_step_;
}

// The numbers of updates add up to the same on all ranks, which fp32 holds exactly below 2^24.
double FragmentExchange::share_of_updates() {
  const auto own = static_cast<double>(unsent_updates_);
  std::array<float, 2> sums = {static_cast<float>(unsent_updates_), 1};
  session_.sum(sums);
  return sums[0] > 0 ? own * sums[1] / sums[0] : 1;
}

void FragmentExchange::begin(bool is_delayed, bool is_weighted) {
  const std::vector<torch::Tensor>& parameters = outer_.parameters();
  if (is_delayed) outer_.keep_going();
  session_.begin_pass();
  const double weight = is_weighted ? share_of_updates() : 1;
  changes_.resize(parameters.size());
  for (size_t p = parameters.size(); p-- > 0;) {
    changes_[p] = outer_.change(p);
    if (is_weighted) changes_[p].mul_(weight);
    session_.hand_over(parameters[p], changes_[p]);
  }
  unsent_updates_ = 0;
}

bool FragmentExchange::complete(int64_t counted_updates) {
  session_.end_pass();
  changes_.clear();
  session_.begin_update();
  counted_updates > 0 ? session_.count_updates(counted_updates) : session_.exclude_step();
  session_.end_update();
  updates_of_step_ = 0;
  return is_finite_;
}

void FragmentExchange::forget() {
  unsent_updates_ = updates_of_step_ = 0;
  report_ = {.excluded = true};
}

}  // namespace gradtune
