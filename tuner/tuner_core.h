// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The inside of the tuner: its state, and the functions of four files. tuner_core.cc turns reports into commands,
// tuner_core_search.cc leads from observing to a decision, tuner_core_watch.cc audits a decision,
// tuner_core_repair.cc follows bans. It is not for users.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/rng.h"
#include "tuner/audit_clock.h"
#include "tuner/bans.h"
#include "tuner/budget.h"
#include "tuner/contenders.h"
#include "tuner/observation.h"
#include "tuner/phase.h"
#include "tuner/schedule.h"
#include "tuner/slot_table.h"
#include "tuner/tuner.h"

namespace gradtune::tuner {

constexpr int kBlockSteps = 5;        // of a race; the first one, which may show the switch, is dropped
constexpr int kMostNonfinite = 32;    // consecutive steps under a lossy strategy
constexpr size_t kMostFinalists = 7;  // of a race, including the committed strategy: with the baseline 8 arms

// Each phase asks for blocks and preparations, and continues when all of them are done. The scores of its blocks go
// to the phase's experiment (Observation, Race, Confirmation) or to the policy, which says what runs next.
class Tuner::Core {
 public:
  Core(const TunerOptions& options, MakePolicy make_policy, policies::Knowledge knowledge,
       const std::vector<policies::Candidate>& baselines, const std::optional<policies::Candidate>& imported);

  Action on_step(const core::StepReport& report);
  void learn_table(const core::GradientTable& table);
  void learn_timing(int32_t slot, std::vector<policies::TimedOp> ops);
  void learn_failure(const std::string& why) { failure_ = why; }

  Stage stage() const { return stage_of(phase_); }
  const Outcome& outcome() const { return outcome_; }
  const policies::Candidate& in_force() const { return *in_force_; }
  const policies::Candidate& chosen() const;
  double progress() const;
  const std::vector<Score>& ended_blocks() const { return ended_; }
  std::vector<Decision> take_decisions() { return std::exchange(decisions_, {}); }

 private:
  using What = Decision::What;

  template <typename Kind>
  bool is_in() const {
    return std::holds_alternative<Kind>(phase_);
  }
  bool is_watching() const { return is_in<Watching>(); }

  // One for each phase: they evaluate its scores and decide what is next.
  void advance();
  void observe(std::vector<Score> scores);
  void run_baselines();
  void search();
  void race(const std::vector<Score>& scores);
  void confirm(const std::vector<Score>& scores);
  void watch(const core::StepReport& report);
  void guard(const core::StepReport& report);
  void audit(const std::vector<Score>& scores);

  void start_search();
  std::vector<int32_t> slots_of(const policies::Proposal& proposal);
  void start_race(Racing::Among among, std::vector<int32_t> finalists);
  bool leaves_room(const Race& race) const;
  void start_confirming();
  std::string why_nothing() const;
  int steps_to_confirm(int pairs) const;
  void confirm_winner(int pairs, double error);
  std::vector<int32_t> compared_baselines() const;
  void start_audit(bool has_cause, int pairs);
  void look_again();
  void search_again();
  void observe_again(Observing::Before before);
  std::vector<policies::Candidate> foreseen();
  void rank_again();
  void race_known();
  void judge_ranking();
  bool is_worth(int32_t slot, double gain) const;
  void retire_committed();
  void drop_committed(double gain);
  void forget_committed();
  // The baseline; before it is known which one is faster, the one with 16 bits if there is one.
  int32_t sound_baseline() const { return outcome_.baseline_ms > 0 ? baseline_ : baselines_ - 1; }
  bool is_over(int32_t slot) const { return slots_.contains(slot) && bans_.has_strategy(slots_.at(slot).hash); }
  void fall_back(const std::string& why);
  void repair(const policies::Candidate& candidate, int32_t bucket, const std::string& why);
  void confirm_repaired();
  void pin_baseline();
  void give_up_nonfinite(int32_t slot);
  void settle(const std::string& why);
  void conclude(int32_t slot);

  void pin_imported();
  void note(const Score& score);
  void follow_preparation(const core::StepReport& report);
  bool is_trial_ahead() const;
  bool is_tuning(const core::StepReport& report) const;
  void prepare(int32_t slot);
  int earliest_step_of(int32_t slot) const;
  bool is_held() const;
  bool leaves_out(int earliest);
  policies::Knowledge known_for_search();
  Action next_action();
  Action put_in_force(Command::Kind kind, int32_t slot);

  Block trial_block(int32_t slot) const;
  Block paired_block(int32_t slot) const;
  Block tested_block(int32_t slot) const;
  void run(const std::vector<int32_t>& slots, Block (Core::*block)(int32_t) const);
  Race::Arm arm(int32_t slot) const;
  int32_t resting_slot() const;
  double fastest_ms() const;
  void decide(What what, std::string label, double value);

  const TunerOptions options_;
  const MakePolicy make_policy_;
  std::unique_ptr<policies::Policy> policy_;  // of the search
  policies::Knowledge knowledge_;
  const int32_t baselines_;  // in slots 0 ... baselines_ - 1
  const core::Rng rng_;

  SlotTable slots_;
  Schedule schedule_;
  Budget budget_;              // of this tuning
  std::vector<Score> ended_;   // with the last report
  std::vector<Score> scores_;  // since the last advance of the phase

  Phase phase_;
  Observation observation_;
  int32_t baseline_ = 0;
  std::optional<int32_t> rival_;      // the other baseline, if it may be the faster one
  std::optional<int32_t> confirmed_;  // committed, and not dropped since
  std::optional<Command> at_once_;    // announced before anything else
  Bans bans_;
  bool has_warned_ = false;  // about the pinned strategy
  int nonfinite_steps_ = 0;  // consecutive ones
  Contenders contenders_;
  AuditClock clock_;
  bool has_new_content_ = false;       // the gradients' content, which no search knows yet
  int64_t search_horizon_ = 0;         // the search leaves out strategies that may run only after that step
  std::optional<int> left_out_until_;  // the first step in which one of the strategies left out may run
  int confirmations_ = 0, looks_ = 0;  // confirmations begun; number of new looks
  std::string failure_;                // why the present preparation failed; empty: not known
  // The last search measured something.
  bool is_any_measured_ = false;
  std::string why_not_prepared_;  // reason of the last failed preparation; empty: none, or not known

  int64_t step_ = -1;
  std::shared_ptr<const policies::Candidate> in_force_, in_force_before_;
  Outcome outcome_;
  std::vector<Decision> decisions_;
};

}  // namespace gradtune::tuner
