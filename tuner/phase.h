// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What the tuner is about, with what only that part of its work needs: exactly one of these at any time. Leaves open
// what leads from one to the next.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "tuner/confirm.h"
#include "tuner/decision.h"
#include "tuner/race.h"

namespace gradtune::tuner {

// Measures the baselines.
struct Observing {
  enum class Before : uint8_t {
    opening,   // the imported strategy runs first, and nothing is measured yet
    imported,  // the imported strategy races the baseline next
    search,    // a search is next
    looking,   // after an alarm: then it is known whether there is a new search
  } before = Before::search;
};

// Measures what the policy proposes.
struct Searching {
  bool is_trial_ahead = false;  // its block is scheduled, while it is not known whether it is prepared on all ranks
};

struct Racing {
  enum class Among : uint8_t {
    imported,  // the imported strategy alone
    found,     // what a search found, and leaders of races before it
    known,     // what was known before: another winner than what is in force starts a search
  } among = Among::found;
  std::vector<int32_t> finalists = {};
  std::optional<Race> race = {};  // nothing while they are prepared
};

struct Confirming {
  enum class Origin : uint8_t { imported, race, repair } origin = Origin::race;
  int32_t slot = 0;
  std::optional<Confirmation> confirmation = {};  // nothing while a repaired strategy is prepared
};

// What was decided runs.
struct Watching {};

// Compares what is committed with the baseline.
struct Auditing {
  bool has_cause = false;  // something moved; otherwise it is only time again
  Confirmation confirmation;
};

using Phase = std::variant<Observing, Searching, Racing, Confirming, Watching, Auditing>;

Stage stage_of(const Phase& phase);

// Whether the imported strategy is still to be confirmed.
bool is_importing(const Phase& phase);

}  // namespace gradtune::tuner
