// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The phase of the tuner, with the data that only this part of its work needs. Exactly one of these applies at any
// time. It leaves open what leads from one to the next.
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
    looking,   // after an alarm; the result decides if a new search starts
  } before = Before::search;
};

// Measures the strategies that the policy proposes.
struct Searching {
  bool is_trial_ahead = false;  // its block is scheduled before it is known if all ranks prepared it
};

struct Racing {
  enum class Among : uint8_t {
    imported,  // the imported strategy alone
    found,     // results of a search, and leaders of races before it
    known,     // strategies known before: a winner other than the one in force starts a search
  } among = Among::found;
  std::vector<int32_t> finalists = {};
  std::optional<Race> race = {};  // nothing while they are prepared
};

struct Confirming {
  enum class Origin : uint8_t { imported, race, repair } origin = Origin::race;
  int32_t slot = 0;
  std::optional<Confirmation> confirmation = {};  // nothing while a repaired strategy is prepared
};

// The decided strategy runs.
struct Watching {};

// Compares the committed strategy with the baseline.
struct Auditing {
  bool has_cause = false;  // something moved; false: the audit is only due
  Confirmation confirmation;
};

using Phase = std::variant<Observing, Searching, Racing, Confirming, Watching, Auditing>;

Stage stage_of(const Phase& phase);

// Tells if the imported strategy is still to be confirmed.
bool is_importing(const Phase& phase);

}  // namespace gradtune::tuner
