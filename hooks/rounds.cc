// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/rounds.h"

#include <algorithm>
#include <cstdio>
#include <span>
#include <utility>

#include "hooks/refusal.h"

namespace gradtune {
namespace {

std::string plural(int64_t number, const char* what) {
  return std::to_string(number) + ' ' + what + (number == 1 ? "" : "s");
}

std::string in_fragments(int64_t fragments) {
  return fragments == 1 ? "" : " in " + std::to_string(fragments) + " fragments";
}

}  // namespace

Optimizer::Result result_of(std::span<const std::unique_ptr<Session>> sessions) {
  Optimizer::Result all = sessions.front()->result();
  if (sessions.size() == 1) return all;
  all.description = plural(static_cast<int64_t>(sessions.size()), "fragment");
  for (size_t f = 0; f < sessions.size(); ++f) {
    const Optimizer::Result of_one = sessions[f]->result();
    all.decided = all.decided && of_one.decided;
    all.description += "\nfragment " + std::to_string(f + 1) + ", " + of_one.strategy +
                       (of_one.decided ? ": " : ", still tuned: ") + of_one.description;
  }
  return all;
}

std::string describe_length(const tuner::RoundLength& length, const tuner::ExchangeTimes& times) {
  const tuner::RoundShape& round = length.round();
  const double between_ms = static_cast<double>(round.updates) * times.update_ms;
  char delayed[100] = "", text[300];
  if (round.delay > 0) {
    std::snprintf(delayed, sizeof delayed, ", %.1f ms of them beside %s",
                  times.exchange_ms - times.waiting_ms(round.delay), plural(round.delay, "update").c_str());
  }
  std::snprintf(text, sizeof text,
                "%s a round (at most %lld)%s: an exchange takes %.1f ms%s; ranks wait %.1f %% of %.1f ms",
                plural(round.updates, "update").c_str(), static_cast<long long>(length.allowed().most),
                in_fragments(round.fragments).c_str(), times.exchange_ms, delayed, 100 * times.share_of_waiting(round),
                between_ms);
  return text;
}

Rounds::Rounds(std::span<const std::unique_ptr<Session>> sessions, const OuterStep::Rates& rates,
               const tuner::RoundLength& length, bool uneven)
    : length_(length), lost_(*sessions.back()) {
  core::check(static_cast<int64_t>(sessions.size()) == length.allowed().fragments, "each fragment has a session");
  for (const auto& session : sessions) fragments_.push_back(std::make_unique<FragmentExchange>(*session, rates));
  if (uneven) speed_.emplace();
  say_length();
}

void Rounds::say_length() const {
  const tuner::UpdatesARound& allowed = length_.allowed();
  first().say("gradtune: training goes on in rounds of " + std::to_string(allowed.least) + " to " +
              std::to_string(allowed.most) + " updates" + in_fragments(allowed.fragments) +
              "; from here on, a step is the exchange of a round and one update\n");
}

void Rounds::allow(const tuner::UpdatesARound& allowed) {
  core::check(under_way_ == nullptr, "the length of rounds changes while an exchange is under way");
  core::check(allowed.fragments == length_.allowed().fragments, "the number of fragments stays");
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
  for (const auto& fragment : fragments_) fragment->count_update();
  bool has_ended = false;
  if (under_way_ != nullptr) {
    if (under_way_->unsent_updates() < length_.round().delay) {
      under_way_->session().advance();
      return false;
    }
    has_ended = complete();
  }
  const auto is_due = [this] {
    const bool is_last = next_ + 1 == fragments_.size();
    return updates_ >= (is_last ? own_updates() : length_.round().updates_before(static_cast<int64_t>(next_)));
  };
  while (under_way_ == nullptr && is_due()) {
    const bool is_delayed = length_.round().delay > 0;
    begin_next(is_delayed, /*goes_on=*/true);
    if (!is_delayed) has_ended = complete() || has_ended;
  }
  return has_ended;
}

bool Rounds::end_round(const std::function<void()>& round_ended) {
  bool has_ended = complete();
  // Ranks need not have made the same number of updates: one that skipped a step, or whose data ended, has fewer.
  // All exchanges are of all ranks, in the same order, so this rank follows the others to the end.
  size_t exchanged = 0;
  do {
    exchanged = next_;
    has_ended = exchange_at_end(round_ended) || has_ended;
  } while (fragments_[exchanged]->told().goes_on);
  for (size_t f = 0; f < fragments_.size(); ++f) {
    if (f == exchanged) continue;
    next_ = f;
    has_ended = exchange_at_end(round_ended) || has_ended;
  }
  next_ = 0;
  updates_ = 0;
  has_updates_ = false;
  return has_ended;
}

bool Rounds::exchange_at_end(const std::function<void()>& round_ended) {
  const FragmentExchange& one = *fragments_[next_];
  begin_next(/*is_delayed=*/false, /*goes_on=*/false);
  if (complete_one(/*is_whole=*/!speed_) && round_ended) round_ended();
  return one.told().has_updates;
}

bool Rounds::complete() { return under_way_ != nullptr && complete_one(/*is_whole=*/true); }

Rounds::Progress Rounds::progress() const {
  return {.rounds = rounds_,
          .updates = updates_,
          .updates_a_round = own_updates(),
          .delay = length_.round().delay,
          .exchange_ms = last_.exchange_ms,
          .update_ms = last_.update_ms,
          .lost = lost_.count()};
}

std::vector<torch::Tensor> Rounds::momenta() const { return of_all(&OuterStep::momenta); }

std::vector<torch::Tensor> Rounds::parameters() const { return of_all(&OuterStep::parameters); }

std::vector<torch::Tensor> Rounds::of_all(const std::vector<torch::Tensor>& (OuterStep::*tensors)() const) const {
  std::vector<torch::Tensor> all;
  for (const auto& fragment : fragments_) {
    const std::vector<torch::Tensor>& of_one = (fragment->outer().*tensors)();
    all.insert(all.end(), of_one.begin(), of_one.end());
  }
  return all;
}

double Rounds::weigh() {
  const tuner::SiteSpeed::Told own{.updates = under_way_->unsent_updates(), .update_ms = std::exchange(told_ms_, 0)};
  const std::vector<uint64_t> all = first().gather(tuner::SiteSpeed::pack(own));
  speed_->learn(own, all);
  return tuner::SiteSpeed::weight(own, all);
}

void Rounds::begin_next(bool is_delayed, bool goes_on) {
  under_way_ = fragments_[next_].get();
  FragmentExchange::How how{.is_delayed = is_delayed, .goes_on = goes_on};
  if (speed_) how.weight = [this] { return weigh(); };
  under_way_->begin(how);
  if (++next_ < fragments_.size()) return;
  next_ = 0;
  updates_ = 0;
}

bool Rounds::complete_one(bool is_whole) {
  FragmentExchange& one = *std::exchange(under_way_, nullptr);
  // Ranks that are not equally fast spend about the same time on a round, which counts as the slowest one's updates.
  const int64_t updates = is_whole ? one.updates_of_step() : 0;
  one.complete(speed_ && updates > 0 ? length_.round().updates : updates);
  if (!std::exchange(is_noted_, true)) note(first().step() - 1, {});
  has_updates_ = has_updates_ || one.told().has_updates;
  if (one.outcome() != OuterStep::Outcome::stepped) {
    // Values that are not finite in one fragment would come back into it from the others.
    for (const auto& fragment : fragments_) fragment->outer().go_back();
    lost_.lost(rounds_ + 1, one.outcome() == OuterStep::Outcome::lost_here);
  }
  if (&one != fragments_.back().get() || !std::exchange(has_updates_, false)) return false;
  ++rounds_;
  lost_.ended();
  learn();
  own_ms_ = updates > 0 ? one.session().compute_ms() / static_cast<double>(updates) : 0;
  return true;
}

void Rounds::learn() {
  tuner::ExchangeTimes mean;
  const double share = 1 / static_cast<double>(fragments_.size());
  bool is_excluded = false, is_finite = true;
  for (const auto& fragment : fragments_) {
    const core::StepReport& report = fragment->report();
    const tuner::ExchangeTimes times = tuner::exchange_times(report);
    mean.exchange_ms += share * times.exchange_ms;
    mean.update_ms += share * times.update_ms;
    mean.work_ms += share * times.work_ms;
    is_excluded = is_excluded || report.excluded;
    is_finite = is_finite && report.finite;
  }
  told_ms_ = is_excluded ? 0 : own_ms_;
  if (is_excluded) return;
  last_ = mean;
  if (!is_finite) return;
  if (const auto times = length_.learn(mean)) {
    first().say("gradtune: " + describe_length(length_, *times) + '\n');
    note(first().step(), times);
  }
}

void Rounds::note(int64_t step, const std::optional<tuner::ExchangeTimes>& times) {
  first().note({.step = step, .round = length_.round(), .allowed = length_.allowed(), .times = times});
}

Sessions Rounds::sessions() const {
  Sessions sessions;
  for (const auto& fragment : fragments_) sessions.push_back(&fragment->session());
  return sessions;
}

void Rounds::save_checkpoint(const std::string& folder) {
  core::check(under_way_ == nullptr, "a checkpoint is saved while an exchange is under way");
  save_rounds(sessions(), folder, {.rounds = rounds_, .round = length_.round(), .momenta = momenta()});
}

void Rounds::load_checkpoint(const std::string& folder) {
  complete();
  const SavedRounds saved = load_rounds(first(), folder);
  if (saved.is_synchronous()) {
    refuse("the checkpoint in " + folder +
           " is of synchronous steps, and this job trains in rounds; allowed is to load it into a new job");
  }
  check_fits(saved, folder, static_cast<int64_t>(fragments_.size()), parameters());
  load_sessions(sessions(), folder, saved);
  restore(saved.rounds, saved.round, saved.momenta);
}

void Rounds::restore(int64_t rounds, const tuner::RoundShape& round, const std::vector<torch::Tensor>& momenta) {
  check_momenta(momenta, parameters());
  std::span<const torch::Tensor> left(momenta);
  for (const auto& fragment : fragments_) {
    const size_t count = fragment->outer().parameters().size();
    fragment->outer().restore(left.first(count));
    left = left.subspan(count);
    fragment->forget();
  }
  length_ = tuner::RoundLength(length_.allowed(), round);
  rounds_ = rounds;
  updates_ = 0;
  next_ = 0;
  has_updates_ = false;
  last_ = {};
  own_ms_ = told_ms_ = 0;
  lost_.forget();
}

}  // namespace gradtune
