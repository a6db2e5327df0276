// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/rounds.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <span>
#include <utility>

#include "hooks/refusal.h"
#include "hooks/rounds_file.h"

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
    : length_(length) {
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
    begin_next(is_delayed);
    if (!is_delayed) has_ended = complete() || has_ended;
  }
  return has_ended;
}

bool Rounds::end_round() {
  const bool has_ended = complete();
  const bool has_changes = std::ranges::any_of(fragments_, [](const auto& each) { return each->unsent_updates() > 0; });
  if (!has_changes && !speed_) return has_ended;  // with speeds of their own, others may have updates
  next_ = 0;
  do {
    begin_next(/*is_delayed=*/false);
  } while (!complete_one(/*is_whole=*/!speed_));
  return true;
}

bool Rounds::complete() { return under_way_ != nullptr && complete_one(/*is_whole=*/true); }

Rounds::Progress Rounds::progress() const {
  return {.rounds = rounds_,
          .updates = updates_,
          .updates_a_round = own_updates(),
          .delay = length_.round().delay,
          .exchange_ms = last_.exchange_ms,
          .update_ms = last_.update_ms};
}

std::vector<torch::Tensor> Rounds::momenta() const {
  std::vector<torch::Tensor> all;
  for (const auto& fragment : fragments_) {
    const std::vector<torch::Tensor>& of_one = fragment->outer().momenta();
    all.insert(all.end(), of_one.begin(), of_one.end());
  }
  return all;
}

void Rounds::begin_next(bool is_delayed) {
  under_way_ = fragments_[next_].get();
  under_way_->begin(is_delayed, /*is_weighted=*/speed_.has_value());
  if (++next_ < fragments_.size()) return;
  next_ = 0;
  updates_ = 0;
}

bool Rounds::complete_one(bool is_whole) {
  FragmentExchange& one = *std::exchange(under_way_, nullptr);
  // All ranks count the same number. Ranks that are not equally fast spend about the same time on a round, which counts
  // as the slowest one's updates.
  const int64_t updates = is_whole ? one.updates_of_step() : 0;
  const bool is_finite = one.complete(speed_ && updates > 0 ? length_.round().updates : updates);
  if (!std::exchange(is_noted_, true)) note(first().step() - 1, {});
  if (!is_finite) {
    // Values that are not finite in one fragment would come back into it from the others.
    for (const auto& fragment : fragments_) fragment->outer().go_back();
    first().say(
        "gradtune: round " + std::to_string(rounds_ + 1) +
        " is lost: a parameter was not finite on some rank, so all ranks went back to what they last exchanged\n");
  }
  if (&one != fragments_.back().get()) return false;
  ++rounds_;
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
  if (is_excluded) return;
  last_ = mean;
  if (speed_) speed_->learn(own_ms_, mean.update_ms);
  if (!is_finite) return;
  if (const auto times = length_.learn(mean)) {
    first().say("gradtune: " + describe_length(length_, *times) + '\n');
    note(first().step(), times);
  }
}

void Rounds::note(int64_t step, const std::optional<tuner::ExchangeTimes>& times) {
  first().note({.step = step, .round = length_.round(), .allowed = length_.allowed(), .times = times});
}

void Rounds::save_checkpoint(const std::string& folder) {
  end_round();
  for (size_t f = 0; f < fragments_.size(); ++f) fragments_[f]->session().save_checkpoint(folder_of(folder, f));
  save_rounds(
      folder,
      {.session_step = first().progress().step, .rounds = rounds_, .round = length_.round(), .momenta = momenta()});
}

void Rounds::load_checkpoint(const std::string& folder) {
  const SavedRounds saved = load_rounds(folder);
  if (saved.is_synchronous()) {
    refuse("the checkpoint in " + folder +
           " is of synchronous steps, and this job trains in rounds; allowed is to load it into a new job");
  }
  const auto fragments = static_cast<int64_t>(fragments_.size());
  if (saved.round.fragments != fragments) {
    refuse("the checkpoint in " + folder + " is of rounds" + in_fragments(saved.round.fragments) +
           ", and this job has fragments " + std::to_string(fragments) + "; allowed is fragments " +
           std::to_string(saved.round.fragments));
  }
  for (size_t f = 0; f < fragments_.size(); ++f) fragments_[f]->session().load_checkpoint(folder_of(folder, f));
  check_step(saved, first().progress().step, folder);
  restore(saved.rounds, saved.round, saved.momenta);
}

std::string Rounds::folder_of(const std::string& folder, size_t fragment) const {
  if (fragments_.size() == 1) return folder;
  return (std::filesystem::path(folder) / ("fragment-" + std::to_string(fragment + 1))).string();
}

void Rounds::restore(int64_t rounds, const tuner::RoundShape& round, const std::vector<torch::Tensor>& momenta) {
  std::vector<std::span<const torch::Tensor>> of_fragments;
  std::span<const torch::Tensor> left(momenta);
  for (const auto& fragment : fragments_) {
    // A wrong number is seen by the last one.
    const size_t count = fragment == fragments_.back() ? left.size() : fragment->outer().parameters().size();
    of_fragments.push_back(left.first(std::min(count, left.size())));
    left = left.subspan(of_fragments.back().size());
    fragment->outer().check_fits(of_fragments.back());
  }
  for (size_t f = 0; f < fragments_.size(); ++f) {
    fragments_[f]->outer().restore(of_fragments[f]);
    fragments_[f]->forget();
  }
  length_ = tuner::RoundLength(length_.allowed(), round);
  rounds_ = rounds;
  updates_ = 0;
  next_ = 0;
  last_ = {};
}

}  // namespace gradtune
