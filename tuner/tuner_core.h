// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The inside of the tuner: it turns reports into commands. The work of a tuning is done by the phases (phase.h), which
// share a context (context.h); the guard (guard.h) answers to findings in any phase. The core tells them of each
// report, enters the phases that they return, and announces what runs next. It is not for users.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tuner/context.h"
#include "tuner/guard.h"
#include "tuner/paired_timings.h"
#include "tuner/phase.h"
#include "tuner/tuner.h"

namespace gradtune::tuner {

class Tuner::Core {
 public:
  Core(const TunerOptions& options, MakePolicy make_policy, policies::Knowledge knowledge,
       const std::vector<policies::Candidate>& baselines, const std::optional<policies::Candidate>& imported);

  Action on_step(const core::StepReport& report);
  void learn_table(const core::GradientTable& table);
  void learn_timing(int32_t slot, std::vector<policies::TimedOp> ops);
  void learn_failure(const std::string& why) { failure_ = why; }

  Stage stage() const { return stage_of(phase_); }
  const Outcome& outcome() const { return context_.outcome; }
  const policies::Candidate& in_force() const { return *in_force_; }
  const policies::Candidate& chosen() const;
  double progress() const;
  const std::vector<Score>& ended_blocks() const { return ended_; }
  std::vector<Decision> take_decisions() { return std::exchange(context_.diary.decisions, {}); }

 private:
  template <typename Kind>
  bool is_in() const {
    return std::holds_alternative<Kind>(phase_);
  }

  Action follow_pinned(const core::StepReport& report);
  void pin_imported();
  void tune(const core::StepReport& report);
  void enter(NextPhase next);
  void advance();
  void guard(const core::StepReport& report);
  void note(Score score);
  void follow_preparation(const core::StepReport& report);

  bool is_trial_ahead() const;
  bool is_tuning(const core::StepReport& report) const;
  bool is_held() const;
  int32_t resting_slot() const;
  Action next_action();
  Action put_in_force(const Command& command);

  Context context_;
  PairedTimings timings_;
  Phase phase_;
  Guard guard_;
  std::vector<Score> ended_;   // with the last report
  std::vector<Score> scores_;  // since the last advance of the phase
  std::string failure_;        // why the present preparation failed; empty: not known
  std::shared_ptr<const policies::Candidate> in_force_, in_force_before_;
};

}  // namespace gradtune::tuner
