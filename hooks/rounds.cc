// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/rounds.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "hooks/refusal.h"
#include "hooks/rounds_file.h"

namespace gradtune {

std::string describe_length(const tuner::RoundLength& length, const tuner::ExchangeTimes& times) {
  const auto [updates, delay] = length.round();
  const double between_ms = static_cast<double>(updates) * times.update_ms;
  const double waiting_ms = times.waiting_ms(delay);
  char delayed[100] = "", text[300];
  if (delay > 0) {
    std::snprintf(delayed, sizeof delayed, ", %.1f ms of them beside %lld update%s", times.exchange_ms - waiting_ms,
                  static_cast<long long>(delay), delay == 1 ? "" : "s");
  }
  std::snprintf(text, sizeof text,
                "%lld update%s a round (at most %lld): an exchange takes %.1f ms%s; ranks wait %.1f %% of %.1f ms",
                static_cast<long long>(updates), updates == 1 ? "" : "s", static_cast<long long>(length.allowed().most),
                times.exchange_ms, delayed, 100 * waiting_ms / between_ms, between_ms);
  return text;
}

Rounds::Rounds(Session& session, std::vector<torch::Tensor> parameters, const OuterStep::Rates& rates,
               const tuner::RoundLength& length, bool uneven)
    : session_(session), outer_(std::move(parameters), rates), length_(length) {
  if (uneven) speed_.emplace();
  session_.on_averaged([this](const core::StepReport& report) { averaged(report); });
  say_length();
}

void Rounds::say_length() const {
  const tuner::UpdatesARound& allowed = length_.allowed();
  session_.say("gradtune: training goes on in rounds of " + std::to_string(allowed.least) + " to " +
               std::to_string(allowed.most) +
               " updates; from here on, a step is the exchange of a round and one update\n");
}

void Rounds::allow(const tuner::UpdatesARound& allowed) {
  core::check(!is_exchanging(), "the length of rounds changes while an exchange is under way");
  length_ = tuner::RoundLength(allowed, {.updates = allowed.least});
  is_noted_ = false;
  say_length();
}

int64_t Rounds::own_updates() const {
  const int64_t updates = length_.round().updates;
  return speed_ ? speed_->updates(updates, length_.allowed().most) : updates;
}

bool Rounds::end_update() {
  ++updates_;
  ++updates_of_step_;
  const int64_t delay = length_.round().delay;  // changes only when an exchange is completed
  if (is_exchanging()) {
    if (updates_ >= delay) return complete();
    session_.advance();
    return false;
  }
  if (updates_ < own_updates()) return false;
  begin_exchange(/*is_delayed=*/delay > 0);
  return delay == 0 && complete();
}

bool Rounds::end_round() {
  const bool completed = complete();
  if (updates_ == 0 && !speed_) return completed;  // with speeds of their own, others may have updates
  if (speed_) updates_of_step_ = 0;                // it is no whole round
  begin_exchange(/*is_delayed=*/false);
  return complete();
}

Rounds::Progress Rounds::progress() const {
  return {.rounds = rounds_,
          .updates = updates_,
          .updates_a_round = own_updates(),
          .delay = length_.round().delay,
          .exchange_ms = last_.exchange_ms,
          .update_ms = last_.update_ms};
}

// The numbers of updates add up to the same on all ranks, which fp32 holds exactly below 2^24.
double Rounds::weight() {
  if (!speed_) return 1;
  std::array<float, 2> sums = {static_cast<float>(updates_), 1};
  session_.sum(sums);
  return sums[0] > 0 ? static_cast<double>(updates_) * sums[1] / sums[0] : 1;
}

void Rounds::begin_exchange(bool is_delayed) {
  const std::vector<torch::Tensor>& parameters = outer_.parameters();
  if (is_delayed) outer_.keep_going();
  session_.begin_pass();
  const double of_this_rank = weight();
  changes_.resize(parameters.size());
  for (size_t p = parameters.size(); p-- > 0;) {
    changes_[p] = outer_.change(p);
    if (speed_) changes_[p].mul_(of_this_rank);
    session_.hand_over(parameters[p], changes_[p]);
  }
  updates_ = 0;
}

bool Rounds::complete() {
  if (!is_exchanging()) return false;
  session_.end_pass();
  changes_.clear();
  session_.begin_update();
  // All ranks count the same number. Ranks that are not equally fast spend about the same time on a round, which counts
  // as the slowest one's updates.
  const int64_t counted = speed_ ? length_.round().updates : updates_of_step_;
  updates_of_step_ > 0 ? session_.count_updates(counted) : session_.exclude_step();
  session_.end_update();
  own_ms_ = updates_of_step_ > 0 ? session_.compute_ms() / static_cast<double>(updates_of_step_) : 0;
  updates_of_step_ = 0;
  ++rounds_;
  return true;
}

void Rounds::averaged(const core::StepReport& report) {
  for (size_t p = 0; p < changes_.size(); ++p) session_.give_back(outer_.parameters()[p], changes_[p]);
  if (!outer_.step(changes_)) {
    session_.say(
        "gradtune: round " + std::to_string(rounds_ + 1) +
        " is lost: a parameter was not finite on some rank, so all ranks went back to the beginning of the round\n");
  }
  if (!report.excluded) last_ = tuner::exchange_times(report);
  if (speed_ && !report.excluded) speed_->learn(own_ms_, last_.update_ms);
  if (!std::exchange(is_noted_, true)) note({});
  if (const auto times = length_.learn(report)) {
    session_.say("gradtune: " + describe_length(length_, *times) + '\n');
    note(times);
  }
}

void Rounds::note(const std::optional<tuner::ExchangeTimes>& times) {
  // Once there are times, the round under way had its updates.
  session_.note({.step = session_.step() + (times ? 1 : 0),
                 .round = length_.round(),
                 .allowed = length_.allowed(),
                 .times = times});
}

void Rounds::save_checkpoint(const std::string& folder) {
  end_round();
  session_.save_checkpoint(folder);
  save_rounds(folder, {.session_step = session_.progress().step,
                       .rounds = rounds_,
                       .round = length_.round(),
                       .momenta = outer_.momenta()});
}

void Rounds::load_checkpoint(const std::string& folder) {
  const SavedRounds saved = load_rounds(folder);
  if (saved.is_synchronous()) {
    refuse("the checkpoint in " + folder +
           " is of synchronous steps, and this job trains in rounds; allowed is to load it into a new job");
  }
  session_.load_checkpoint(folder);
  check_step(saved, session_.progress().step, folder);
  restore(saved.rounds, saved.round, saved.momenta);
}

void Rounds::restore(int64_t rounds, const tuner::RoundShape& round, const std::vector<torch::Tensor>& momenta) {
  outer_.restore(momenta);
  length_ = tuner::RoundLength(length_.allowed(), round);
  rounds_ = rounds;
  updates_ = updates_of_step_ = 0;
  last_ = {};
}

}  // namespace gradtune
