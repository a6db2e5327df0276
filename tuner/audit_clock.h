// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// When it is time to look whether a decision still holds. An alarm (watch.h) asks for an audit at once; without one an
// audit is due as soon as a small share of the time has paid for it. A look at everything else waits for the cooldown.
// Also keeps what audits found, so that a later one shows whether the job is another one by now. Leaves open what an
// audit does.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/core/measurement.h"
#include "tuner/watch.h"

namespace gradtune::tuner {

class AuditClock {
 public:
  // Until the next decision: a search was decided. What it cost, the step time that it ended with, how much longer a
  // step of the baseline takes, and what the first audit may cost.
  void decided(double cost_ms, double level_ms, double behind_ms, double audit_ms);
  // ... or only an audit is over, which cost that much. The next one may cost the same.
  void audited(double cost_ms);
  // What is in force is another strategy: its usual step time is learned anew.
  void watch_anew() { watch_ = Watch(); }

  // A step of the strategy in force. What is found besides a slow rank is an alarm.
  std::optional<Finding> record(const core::StepReport& report);
  // The step counts towards the next audit and the next look.
  void count(double step_ms);
  bool is_audit_due() const { return allowance_ms_ >= price_ms_; }
  bool is_look_due() const { return cooldown_.is_over(); }
  // The rank that made the last steps longer, if one did; then all ranks are watched anew.
  std::optional<int32_t> take_straggler();

  // An audit compared what is committed with that baseline. The price of a search is at most `most_price_ms` by now.
  void compared(int32_t baseline, double committed_ms, double baseline_ms, double most_price_ms);
  // What was committed is given up.
  void dropped(double most_price_ms) { cooldown_.dropped(most_price_ms); }
  // A confirmation compared them, and the winner is committed.
  void committed(double committed_ms, double baseline_ms);
  // A search begins: later audits are held against what the last one found.
  void searched() { searched_relation_ = audited_relation_; }

  int32_t audited_baseline() const { return audited_baseline_; }  // of the last audit
  // By how much what is committed has lost against the baseline since the last search, as a logarithm.
  double moved() const { return audited_relation_ - searched_relation_; }

 private:
  Watch watch_;
  Cooldown cooldown_;
  double allowance_ms_ = 0, price_ms_ = 0;
  int32_t audited_baseline_ = 0;
  // Logarithms of the step time of what is committed over the baseline's.
  double searched_relation_ = 0, audited_relation_ = 0;
};

}  // namespace gradtune::tuner
