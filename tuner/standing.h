// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The state of a job: the present decision, its evidence, and earlier decisions. It is learned from decisions alone,
// so a running job, its journal and a summary of it say the same (decision_words.h has the words). It leaves open
// who decides, and who is told.
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
    pinned,     // without a tuning budget: the job's first strategy stays
    committed,  // `label` was confirmed to be faster, and is kept
    baseline,   // the baseline is kept
    dropped,    // the kept or pinned strategy is given up, and nothing replaces it yet
  } state = State::undecided;
  std::string label = {};                    // of the strategy that is kept; if none is, of the one that runs meanwhile
  std::string baseline = {};                 // the baseline that gains are measured against
  Comparison comparison = {};                // of the committed strategy; else of the baseline, without a gain
  int64_t pairs = 0;                         // number of pairs behind the comparison
  std::string why = {};                      // why the baseline is kept
  std::string successor = {};                // to be confirmed in place of the dropped strategy
  std::string warning = {};                  // of a pinned strategy that stays nevertheless
  std::optional<int64_t> since = {};         // the last step in which a strategy was kept
  std::optional<int64_t> first_commit = {};  // steps of the job before the first committed strategy came into force

  // Steps of tuning, audits and further tunings included, up to the last conclusion.
  int64_t tuning_steps = 0;
  double tuning_cost_ms = 0;  // extra time over the baseline in these steps

  // The strategy kept or pinned before.
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
  std::string baseline_;  // observed last; a claim may rest on an earlier one
  double baseline_ms_ = 0;
  Comparison tested_;  // of the last confirmation
  int64_t pairs_ = 0;
  std::string finding_;  // of the error guard: why the strategy may be given up
};

}  // namespace gradtune::tuner
