// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Chooses the number of updates in a round of a job that trains in rounds (hooks/rounds.h), and during how many of them
// an exchange is under way. A round has an exchange for each fragment of the model. Ranks should wait for at most a
// twentieth of the time of the updates. Every rank computes it from the same reports, so it is the same on all ranks.
// Plain data, without clock, thread or socket.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/core/measurement.h"

namespace gradtune::tuner {

constexpr double kShareOfExchange = 0.05;
constexpr int64_t kMostUpdatesARound = 1'000'000;
constexpr int64_t kMostFragments = 64;

// The allowed numbers of updates in a round, and of those that a rank makes while an exchange is under way (the delay).
struct UpdatesARound {
  int64_t least = 1, most = 8;
  // Below `least` and at most least / fragments, or 0. None: chosen, up to half of the updates; with several fragments,
  // up to the updates between two exchanges, as each is of a part of the model.
  std::optional<int64_t> delay = 0;
  int64_t fragments = 1;
};

// A round: its updates, the delay of each exchange, and the fragments, which are exchanged one after the other.
struct RoundShape {
  int64_t updates = 1, delay = 0, fragments = 1;

  // The updates of a round after which the exchange of this fragment begins, spread evenly; `updates` for the last one.
  int64_t updates_before(int64_t fragment) const { return (updates * (fragment + 1) + fragments - 1) / fragments; }

  bool operator==(const RoundShape&) const = default;
};

// The times of the exchange of one fragment and of an update, on the slowest rank.
struct ExchangeTimes {
  double exchange_ms = 0;  // from its begin to its end
  double update_ms = 0;
  double work_ms = 0;  // the part of the exchange that the training thread does, which no update can hide

  // The time for which ranks wait for an exchange that is under way during `delay` updates.
  double waiting_ms(int64_t delay) const;
  // The same for all exchanges of a round, as a share of its updates; infinite for updates without time.
  double share_of_waiting(const RoundShape& round) const;
};

// The times of an exchange. Its report has the computation of one update and all of the exchange (with_one_update).
ExchangeTimes exchange_times(const core::StepReport& report);

// A round of that many updates, with the smallest allowed delay with which waiting has its share. If there is none, the
// one after which ranks wait least.
RoundShape with_least_delay(const ExchangeTimes& times, int64_t updates, const UpdatesARound& allowed);

// The smallest allowed number of updates for which waiting has its share, with the smallest delay; the largest number
// if there is none.
RoundShape shortest_round(const ExchangeTimes& times, const UpdatesARound& allowed);

// A round that was chosen, and the medians that decided it.
struct RoundChoice {
  int64_t step = 0;  // of the session: the first one with such rounds
  RoundShape round = {};
  UpdatesARound allowed = {};
  std::optional<ExchangeTimes> times = {};  // none at the beginning
};

class RoundLength {
 public:
  // The reports of this many rounds decide together, by their medians.
  static constexpr size_t kRounds = 9;

  // 1 <= least <= most <= kMostUpdatesARound. Begins with the allowed round that is nearest to `first`.
  RoundLength(const UpdatesARound& allowed, const RoundShape& first);

  const RoundShape& round() const { return round_; }
  const UpdatesARound& allowed() const { return allowed_; }

  // Takes the times of a round, each the mean over its fragments. Returns the medians if the round changes now. Noise
  // has no effect: the number of updates changes by more than a fifth or not at all, and a chosen delay has a margin.
  std::optional<ExchangeTimes> learn(const ExchangeTimes& of_round);
  // The same for a synchronous step, whose exchange is of all fragments at once.
  std::optional<ExchangeTimes> learn(const core::StepReport& of_step);

 private:
  bool is_near(const RoundShape& wanted) const;

  UpdatesARound allowed_;
  RoundShape round_;
  std::vector<double> exchange_ms_, update_ms_, work_ms_;  // of the rounds since the last decision
};

}  // namespace gradtune::tuner
