// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What is looked at while a decision stands: whether step times moved for good, whether the link did (which a strategy
// that hides it would not show), and whether it is one slow rank that holds up all others (which is no strategy's
// fault). And when looking again is worth its price. Leaves open what is done about it.
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

  // The steps of one strategy, one after the other. At most one finding a step; after one a new level is learned.
  std::optional<Finding> record(const core::StepReport& report);

  // The rank whose computation made the last steps longer, if they are longer by what is worth an alarm: for when
  // something else asks before there is enough evidence for one.
  std::optional<int32_t> straggler() const;

 private:
  bool is_straggler() const;

  Drift step_, link_;
  std::vector<core::StepReport> reference_, recent_;
};

// Ski rental (tuning reference, section 6.4): a search is worth its price again once not having looked has cost as much.
// A step earns a little as long as nothing happened, and all that it differs by from what was decided on after an
// alarm. Searches that follow one another get dearer, the more so where what they found did not last, so that what goes
// up and down costs little altogether.
class Cooldown {
 public:
  // A decision was taken, at that price: what its search cost beyond the step time that it ended with. The baseline, of
  // which a search runs many steps, took `behind_ms` longer a step than that.
  void begin(double price_ms, double level_ms, double behind_ms);
  void alarm() { is_alarmed_ = true; }
  // A search costs no more than that by now, and less where the baseline is not as far behind any more: where the link
  // got faster, its steps did as well.
  void reprice(double most_price_ms, double behind_ms);
  // What was decided on did not last.
  void dropped(double most_price_ms);
  // A step; of a stall (budget.h) only a part.
  void count(double took_ms);

  // Something moved, and it is time to look what that means.
  bool is_over() const;

 private:
  double price_ms_ = 0, level_ms_ = 0, behind_ms_ = 0;
  double credit_ms_ = 0;
  int searches_ = 0;         // in a row, and drops
  int64_t quiet_steps_ = 0;  // since the last alarm
  bool is_alarmed_ = false;
};

}  // namespace gradtune::tuner
