// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Decides when to check if a decision still holds. An alarm (watch.h) asks for an audit at once; without one an
// audit is due as soon as a small share of the time has paid for it. A look at all other strategies waits for the
// cooldown. It also keeps the results of audits, so that a later one shows if the job has changed since. It leaves
// open what an audit does.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/core/measurement.h"
#include "tuner/watch.h"

namespace gradtune::tuner {

class AuditClock {
 public:
  // A search reached a decision: its cost, the step time that it ended with, the extra time of a baseline step, and
  // the most that the first audit may cost.
  void decided(double cost_ms, double level_ms, double behind_ms, double audit_ms);
  // Only an audit is over, which cost that much. The next one may cost the same.
  void audited(double cost_ms);
  // Another strategy is in force: its usual step time is learned anew.
  void watch_anew() { watch_ = Watch(); }

  // Records a step of the strategy in force. A finding other than a slow rank is an alarm.
  std::optional<Finding> record(const core::StepReport& report);
  // Counts the step towards the next audit and the next look.
  void count(double step_ms);
  bool is_audit_due() const { return allowance_ms_ >= price_ms_; }
  bool is_look_due() const { return cooldown_.is_over(); }
  // The rank that made the last steps longer, if one did. All ranks are then watched anew.
  std::optional<int32_t> take_straggler();

  // An audit compared the committed strategy with that baseline. A search now costs at most `most_price_ms`.
  void compared(int32_t baseline, double committed_ms, double baseline_ms, double most_price_ms);
  // The committed strategy is dropped.
  void dropped(double most_price_ms) { cooldown_.dropped(most_price_ms); }
  // A confirmation compared them, and the winner is committed.
  void committed(double committed_ms, double baseline_ms);
  // A new look at all strategies begins. Returns the number of earlier ones.
  int looked() { return looks_++; }
  // A search begins: later audits are compared with the result of the last one.
  void searched() { searched_relation_ = audited_relation_; }

  int32_t audited_baseline() const { return audited_baseline_; }  // of the last audit
  // The loss of the committed strategy against the baseline since the last search, as a logarithm.
  double moved() const { return audited_relation_ - searched_relation_; }

 private:
  Watch watch_;
  Cooldown cooldown_;
  double allowance_ms_ = 0, price_ms_ = 0;
  int32_t audited_baseline_ = 0;
  // Logarithms of the committed strategy's step time over the baseline's.
  double searched_relation_ = 0, audited_relation_ = 0;
  int looks_ = 0;
};

}  // namespace gradtune::tuner
