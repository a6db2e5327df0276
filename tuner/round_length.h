// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Chooses the number of updates between two exchanges of a job that trains in rounds (hooks/rounds.h). An exchange
// should take at most a twentieth of the time of the updates between. Every rank computes it from the same reports,
// so it is the same on all ranks. Plain data, without clock, thread or socket.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/core/measurement.h"

namespace gradtune::tuner {

constexpr double kShareOfExchange = 0.05;
constexpr int64_t kMostUpdatesARound = 1'000'000;

// The allowed numbers of updates in a round.
struct UpdatesARound {
  int64_t least = 1, most = 8;
};

// The smallest allowed number of updates for which an exchange has its share; the largest one if there is none.
int64_t shortest_round(double exchange_ms, double update_ms, const UpdatesARound& allowed);

// A number of updates that was chosen, and the medians that decided it.
struct RoundChoice {
  int64_t step = 0;  // of the session: the first one with such rounds
  int64_t updates = 1;
  UpdatesARound allowed = {};
  std::optional<double> exchange_ms = {}, update_ms = {};  // none at the beginning
};

class RoundLength {
 public:
  // The reports of this many rounds decide together, by their medians.
  static constexpr size_t kRounds = 9;

  // 1 <= least <= most <= kMostUpdatesARound. Begins with the allowed number that is nearest to `first`.
  RoundLength(const UpdatesARound& allowed, int64_t first);

  int64_t updates() const { return updates_; }
  const UpdatesARound& allowed() const { return allowed_; }

  // The medians that decided last.
  struct Times {
    double exchange_ms = 0, update_ms = 0;
  };
  // Takes the report of a round, in which times are those of one update (core::with_one_update). Returns the times if
  // the number of updates changes now. It changes by more than a fifth or not at all, so that noise has no effect.
  std::optional<Times> learn(const core::StepReport& report);

 private:
  UpdatesARound allowed_;
  int64_t updates_;
  std::vector<double> exchange_ms_, update_ms_;  // of the rounds since the last decision
};

}  // namespace gradtune::tuner
