// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What the tuner is made of inside: its state and, in four files, its parts. tuner.cc turns reports into commands,
// stages.cc leads from observing to a decision, retune.cc looks after a decision, guard.cc after errors. Not for users.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/rng.h"
#include "tuner/budget.h"
#include "tuner/confirm.h"
#include "tuner/observation.h"
#include "tuner/race.h"
#include "tuner/schedule.h"
#include "tuner/slot_table.h"
#include "tuner/tuner.h"
#include "tuner/watch.h"

namespace gradtune::tuner {

constexpr int kBlockSteps = 5;        // of a race; the first is dropped (tuning reference, section 4)
constexpr size_t kMostFinalists = 7;  // of a race, what is committed included: with the baseline 8 arms

// What a search told about a kind of compression: its best strategies, the fastest first.
using Kind = std::set<std::string>;
Kind kind_of(const core::Strategy& strategy);
struct Best {
  policies::Candidate candidate;
  double step_ms;
};

// Each stage asks for blocks and preparations, and goes on when all of them are done: the scores of its blocks go to
// the experiment that the stage is about (Observation, Race, Confirmation) or to the policy, which says what is to run
// next.
class Tuner::Core {
 public:
  Core(const TunerOptions& options, MakePolicy make_policy, policies::Knowledge knowledge,
       const std::vector<policies::Candidate>& baselines, const std::optional<policies::Candidate>& imported);

  Action on_step(const core::StepReport& report);
  void learn_table(const core::GradientTable& table) { knowledge_.table = table; }
  void learn_timing(int32_t slot, std::vector<policies::TimedOp> ops);

  Stage stage() const { return importing_ && stage_ < Stage::confirm ? Stage::imported : stage_; }
  const Outcome& outcome() const { return outcome_; }
  const policies::Candidate& in_force() const { return *in_force_; }
  const policies::Candidate& chosen() const;
  double progress() const;
  std::vector<Decision> take_decisions() { return std::exchange(decisions_, {}); }

 private:
  using What = Decision::What;

  // One for each stage: what its scores say, and what is next.
  void advance();
  void observe(std::vector<Score> scores);
  void run_baselines();
  void partition();
  void race(const std::vector<Score>& scores);
  void confirm(const std::vector<Score>& scores);
  void watch(const core::StepReport& report);
  void guard(const core::StepReport& report);
  void audit(const std::vector<Score>& scores);

  void start_search();
  std::vector<int32_t> slots_of(const policies::Proposal& proposal);
  void start_race(std::vector<int32_t> finalists);
  void start_confirming();
  void confirm_winner(int pairs, double error);
  std::vector<int32_t> compared_baselines() const;
  void start_audit(int pairs);
  void look_again();
  std::vector<policies::Candidate> foreseen() const;
  void rank_again();
  void race_kinds_again();
  void judge_ranking();
  bool is_worth(int32_t slot, double gain) const;
  void retire_committed();
  void drop_committed(double gain);
  void forget_committed();
  bool is_over(int32_t slot) const { return slots_.contains(slot) && over_.contains(slots_.at(slot).hash); }
  void fall_back(const std::string& why);
  void repair(const policies::Candidate& candidate, int32_t bucket, const std::string& why);
  void confirm_repaired();
  policies::Candidate without_banned(policies::Candidate candidate) const;
  std::optional<policies::Candidate> admitted(const policies::Candidate& proposed) const;
  void settle(const std::string& why);
  void conclude(int32_t slot);

  void pin_imported();
  void note(const Score& score);
  void follow_preparation(const core::StepReport& report);
  bool is_tuning(const core::StepReport& report) const;
  bool is_held() const;
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
  Budget budget_;                // of this tuning
  std::vector<Score> scores_;    // since the stage went on last
  bool is_trial_ahead_ = false;  // on the schedule, not known to be prepared

  Stage stage_ = Stage::observe;
  bool importing_;           // the race, of one, and the confirmation are about the imported strategy
  bool is_opening_ = false;  // it runs, and nothing else is looked at yet
  Observation observation_;
  std::vector<int32_t> finalists_;
  std::optional<Race> race_;
  std::optional<Confirmation> confirmation_;
  int32_t winner_ = 0;
  int32_t baseline_ = 0;
  std::optional<int32_t> rival_;      // the other baseline, where it may be the faster one
  bool is_repairing_ = false;         // the winner is what was committed, without compression in a bucket
  std::optional<int32_t> confirmed_;  // committed, and not found wanting since
  std::optional<Command> at_once_;    // to be announced before anything else
  std::set<uint64_t> over_;           // hashes of strategies that were found over their error budget
  std::map<std::string, std::set<int32_t>> banned_;  // compressors, and the tensors that they are not to be used for
  std::map<int32_t, uint64_t> proposed_;  // what the policy had proposed for a slot, which may hold less compression

  std::map<Kind, std::vector<Best>> kinds_;   // of the last search
  bool is_ranking_ = false;                   // the race is among them
  std::vector<policies::Candidate> leaders_;  // have their places in the race against what a new search finds
  std::vector<policies::Candidate> former_;   // was committed before; the last first
  bool has_decided_ = false;
  int confirmations_ = 0, looks_ = 0;  // begun; how often kinds raced again
  Watch watch_;
  Cooldown cooldown_;
  double audit_allowance_ms_ = 0, audit_price_ms_ = 0;
  bool has_cause_ = false;  // the audit: something moved
  int32_t audited_ = 0;     // the baseline of the last audit
  // Logarithm of the step time of what was committed over the baseline's: at the last search, and by the last audit.
  double searched_relation_ = 0, audited_relation_ = 0;

  int64_t step_ = -1;
  std::shared_ptr<const policies::Candidate> in_force_, in_force_before_;
  Outcome outcome_;
  std::vector<Decision> decisions_;
};

}  // namespace gradtune::tuner
