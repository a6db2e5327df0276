// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/fragment_exchange.h"

namespace gradtune {

FragmentExchange::FragmentExchange(Session& session, const OuterStep::Rates& rates)
    : session_(session), outer_(session.trained(), rates) {
  session_.on_averaged([this](const tuner::StepProtocol::Received& received) {
    for (size_t p = 0; p < changes_.size(); ++p) session_.give_back(outer_.parameters()[p], changes_[p]);
    outcome_ = outer_.step(changes_, /*is_late=*/!received.round.has_updates);
    received_ = received;
  });
}

void FragmentExchange::count_update() {
  ++unsent_updates_;
  ++updates_of_step_;
}

void FragmentExchange::begin(const How& how) {
  const std::vector<torch::Tensor>& parameters = outer_.parameters();
  if (how.is_delayed) outer_.keep_going();
  session_.begin_pass();
  const double weight = how.weight ? how.weight() : 1;
  session_.tell_round({.has_updates = unsent_updates_ > 0, .goes_on = how.goes_on});
  changes_.resize(parameters.size());
  for (size_t p = parameters.size(); p-- > 0;) {
    changes_[p] = outer_.change(p);
    if (how.weight) changes_[p].mul_(weight);
    session_.hand_over(parameters[p], changes_[p]);
  }
  unsent_updates_ = 0;
}

void FragmentExchange::complete(int64_t counted_updates) {
  session_.end_pass();
  changes_.clear();
  session_.begin_update();
  counted_updates > 0 ? session_.count_updates(counted_updates) : session_.exclude_step();
  session_.end_update();
  updates_of_step_ = 0;
}

void FragmentExchange::forget() {
  unsent_updates_ = updates_of_step_ = 0;
  received_ = {.report = {.excluded = true}, .command = {}};
}

}  // namespace gradtune
