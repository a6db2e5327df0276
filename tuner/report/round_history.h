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

// On the slowest rank.
struct RoundTimes {
  int64_t round = 0;
  int32_t slot = 0;  // of the strategy
  RoundShape shape = {};
  ExchangeTimes times = {};
  bool counts = false;  // it is not excluded, and all values were finite

  double share() const { return times.share_of_waiting(shape); }
};

// Rounds of the same shape.
struct RoundsRun {
  RoundChoice choice;  // that they began with
  int64_t rounds = 0;  // that count
  // Medians of these; none if no round counts.
  std::optional<ExchangeTimes> times = {};
  std::optional<double> share = {};
};

struct RoundHistory {
  std::vector<RoundTimes> rounds = {};  // those that have a time
  std::vector<RoundsRun> runs = {};     // one for each choice; none: each step is one update

  // The times that explain the last choice: those that decided it, or else the medians of its rounds.
  std::optional<ExchangeTimes> deciding() const;
};

RoundHistory round_history(const JournalFile& journal);

}  // namespace gradtune::tuner
