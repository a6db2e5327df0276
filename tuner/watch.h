// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Watches a decision, and decides when it pays to tune again. Watch finds three things: step times that moved for
// good, a link that moved, and a slow rank that the others wait for. A strategy that hides the link does not show a
// change of it in the step time, and no strategy can help against a slow rank. It leaves open what is done about a
// finding.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/core/measurement.h"
#include "tuner/drift.h"

namespace gradtune::tuner {

struct Finding {
  enum class Kind : uint8_t { drift, link, straggler } kind = Kind::drift;
  double log_shift = 0;  // of the step time, or of the time that collectives take; > 0: slower
  int32_t rank = -1;     // straggler: the slowest one
};

class Watch {
 public:
  Watch();

  // Call for every step of one strategy, in order. Returns at most one finding a step, and then learns a new level.
  std::optional<Finding> record(const core::StepReport& report);

  // The rank whose computation made the last steps longer, if the increase is large enough for an alarm. It answers
  // before there is enough evidence for an alarm.
  std::optional<int32_t> straggler() const;

 private:
  bool is_straggler() const;

  Drift step_, link_;
  std::vector<core::StepReport> reference_, recent_;
};

// Decides when a search is worth its price again: once not searching has cost as much (ski rental, so the total is
// at most about twice that of the best choice in hindsight). Each step adds credit: a small fixed share while quiet;
// after an alarm, its full difference from the committed step time. Each search in a row doubles the price, and so
// does a committed strategy that had to be dropped; so a job that oscillates spends little.
class Cooldown {
 public:
  // A decision was taken. `price_ms` is the cost of its search beyond the final step time `level_ms`. The baseline,
  // which runs in many steps of a search, took `behind_ms` longer a step than that.
  void begin(double price_ms, double level_ms, double behind_ms);
  void alarm() { is_alarmed_ = true; }
  // Lowers the price of a search to the given limit. It also falls if the baseline is less far behind now, since
  // most of the price is steps of the baseline.
  void reprice(double most_price_ms, double behind_ms);
  // The committed strategy was dropped.
  void dropped(double most_price_ms);
  // Counts a step. Only a part of a stall (budget.h) counts.
  void count(double took_ms);

  // There was an alarm, and a search is worth its price.
  bool is_over() const;

 private:
  double price_ms_ = 0, level_ms_ = 0, behind_ms_ = 0;
  double credit_ms_ = 0;
  int searches_ = 0;         // consecutive searches, and drops
  int64_t quiet_steps_ = 0;  // since the last alarm
  bool is_alarmed_ = false;
};

}  // namespace gradtune::tuner
