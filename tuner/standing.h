// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// How a job stands: what is decided, what it rests on, and what was decided before. It is learned from decisions alone,
// so a running job, its journal and a summary of it say the same (decision_words.h has the words). Leaves open who
// decides, and who is told.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tuner/comparison.h"
#include "tuner/decision.h"
#include "tuner/job.h"

namespace gradtune::tuner {

struct Standing {
  enum class State : uint8_t {
    undecided,  // nothing was kept yet
    pinned,     // without a tuning budget: what the job began with stays
    committed,  // `label` was confirmed to be faster, and is kept
    baseline,   // the baseline is kept
    dropped,    // what was kept or pinned is given up, and nothing is kept in its place yet
  } state = State::undecided;
  std::string label = {};             // of the strategy that is kept; where none is, of the one that runs meanwhile
  std::string baseline = {};          // that gains are measured against
  Comparison comparison = {};         // of what is committed; else of the baseline, without a gain
  int64_t pairs = 0;                  // that the comparison rests on
  std::string why = {};               // the baseline is kept
  std::string successor = {};         // confirmed in the place of what was dropped
  std::string warning = {};           // of a pinned strategy that stays all the same
  std::optional<int64_t> since = {};  // the step in which it was decided to keep something, the last time
  std::optional<int64_t> first_commit = {};  // steps of the job before what was committed first came into force

  // Of tuning, audits and further tunings included, up to the last conclusion.
  int64_t tuning_steps = 0;
  double tuning_cost_ms = 0;  // beyond what the baseline would have taken in these steps

  // What was kept or pinned before.
  struct Former {
    int64_t step = 0;  // in which it was given up
    std::string label;
    std::string why;  // empty: another strategy was confirmed to be faster

    bool operator==(const Former&) const = default;
  };
  std::optional<Former> former = {};

  bool is_decided() const { return state != State::undecided && state != State::pinned; }
  bool operator==(const Standing&) const = default;
};

class Story {
 public:
  Story() = default;
  explicit Story(const Job& job);

  void learn(const Decision& decision);
  const Standing& standing() const { return standing_; }

 private:
  void give_up(const Decision& decision, std::string why);
  void run_baseline(Standing::State state);

  Standing standing_;
  std::string baseline_;  // observed last; what a claim rests on may be an earlier one
  double baseline_ms_ = 0;
  Comparison tested_;  // of the confirmation that just ended
  int64_t pairs_ = 0;
  std::string finding_;  // of the error guard: why what it is about may be given up
};

}  // namespace gradtune::tuner
