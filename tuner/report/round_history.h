// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The rounds of a job that trains in rounds (hooks/rounds.h): for how long ranks waited for their exchanges beside the
// updates between, and which numbers of updates were chosen. Empty for other jobs.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tuner/files/journal_reader.h"
#include "tuner/round_length.h"

namespace gradtune::tuner {

// The time for which ranks wait in a round, as a share of its updates; infinite for updates without time.
double share_of_waiting(double exchange_ms, double update_ms, const RoundShape& round);

// On the slowest rank.
struct RoundTimes {
  int64_t round = 0;
  int32_t slot = 0;  // of the strategy
  RoundShape shape = {};
  double exchange_ms = 0;  // with the part that updates hid
  double update_ms = 0;    // one update
  bool counts = false;     // it is not excluded, and all values were finite

  double share() const { return share_of_waiting(exchange_ms, update_ms, shape); }
};

// Rounds of the same shape.
struct RoundsRun {
  RoundChoice choice;  // that they began with
  int64_t rounds = 0;  // that count
  // Medians of these; none if no round counts.
  std::optional<double> exchange_ms = {}, update_ms = {}, share = {};
};

struct RoundHistory {
  std::vector<RoundTimes> rounds = {};  // those that have a time
  std::vector<RoundsRun> runs = {};     // one for each choice; none: each step is one update

  // The times that explain the last choice: those that decided it, or else the medians of its rounds.
  struct Times {
    double exchange_ms = 0, update_ms = 0;
  };
  std::optional<Times> deciding() const;
};

RoundHistory round_history(const JournalFile& journal);

}  // namespace gradtune::tuner
