// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The work of a rank with strategies from step to step. It connects the runner of strategies, the agreement of
// ranks, error budgets and rank 0's tuner. A training job and a simulated one both run this code; they differ only
// in how they wait. It has no clock, thread or socket.
//
// The calls of a step, in this order:
// - begin(): as backward begins
// - control_word(): when the runner asks for it, on the thread that issues collectives
// - receive(): takes the reduced word; concludes the step and judges the loss of compression
// - carry_out(): carries out the command of the word. After a prepare, rank 0 may broadcast the strategy, which
//   receive_strategy() takes
// - announce(): on rank 0, the command and the text that the next word brings to all
// - end_step(): the times of the step, which the next word carries
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/core/measurement.h"
#include "engine/exec/strategy_runner.h"
#include "policies/policy.h"
#include "tuner/agreement.h"
#include "tuner/error_budget.h"

namespace gradtune::tuner {

using Candidates = std::map<int32_t, policies::Candidate>;  // by slot

// Reads the strategy that rank 0 broadcast; an error if it is none.
using ReadCandidate = core::Result<policies::Candidate> (*)(const std::string& text);

class StepProtocol {
 public:
  StepProtocol(exec::StrategyRunner& runner, int rank, const ErrorBudget::Limits& limits, ReadCandidate read);

  // Starts or restarts from epoch 1: prepares these strategies and puts the one in slot `first` in force. A strategy
  // that is committed at once is never on trial. Throws for strategies that cannot be prepared.
  void start(const Candidates& ready, int32_t first, bool is_committed);

  // The calls of a step.
  void begin(uint64_t alike);  // hash of everything else that all ranks must share, such as the shapes of buffers
  // Call before the word leaves if this rank has no gradient of some tensor, or a sparse one.
  void tell_not_dense() { local_.not_dense = true; }
  // The same, if this rank's buffers changed since all ranks had equal ones.
  void tell_new_buffers() { local_.new_buffers = true; }
  // In rounds: what this rank tells with the word that leaves next. Call it before.
  void tell_round(const RoundState& round) { round_ = round; }
  std::span<double> control_word(bool finite);
  struct Received {
    core::StepReport report;                  // of the step before, with the computation of one update; for the tuner
    Command command;                          // to be carried out
    bool not_dense = false;                   // some rank had no gradient of some tensor, or a sparse one
    bool new_buffers = false;                 // some rank's buffers changed
    RoundState round = {};                    // in rounds: what some rank told
    bool counts = true;                       // the step counts: all ranks are finite, and so are its averages
    std::optional<std::string> failure = {};  // why the strategy received last cannot be prepared, once known
  };
  // Returns a mismatch if ranks differ; all of them learn it in this step.
  core::Result<Received> receive();
  // Bytes of the text that rank 0 is to broadcast now; 0: none.
  int64_t carry_out(const Command& command);
  core::Status receive_strategy(const std::string& text);  // returns why this rank cannot prepare it, which the others
                                                           // learn
  void announce(const Command& command, std::string text = {});
  const std::string& announced_text() const { return announced_text_; }

  // The time of the step under way, or of the next one, does not show the speed of the strategy.
  void exclude() { excluded_ = true; }
  struct Times {
    double step_ms = 0, compute_ms = 0, comm_ms = 0, work_ms = 0;  // as in LocalStep
    int64_t updates = 1;  // a step of which ranks made different numbers is excluded
  };
  void end_step(const Times& times);

  int64_t step() const { return step_; }  // step under way, or the next one
  int64_t nonfinite_steps() const { return nonfinite_steps_; }
  int64_t epoch() const { return agreement_->epoch(); }
  int32_t slot() const { return agreement_->slot(); }  // in force
  uint64_t identity() const { return agreement_->identity(); }
  bool is_committed() const { return committed_; }  // the strategy in force is not on trial
  const policies::Candidate& in_force() const { return candidates_.at(slot()); }
  const Candidates& candidates() const { return candidates_; }  // prepared by this rank

  // The loss of compression on this rank, under the strategy in force.
  const ErrorBudget::State& errors() const { return error_budget_.state(); }

  // The state in a checkpoint, between steps.
  struct State {
    int64_t step = 0, nonfinite_steps = 0;
    bool committed = false;
    LocalStep local = {};
    Agreement::State agreement = {};
    ErrorBudget::State errors = {};
  };
  State state() const;
  // Call this first: an error leaves this rank without any strategy, and it cannot continue.
  core::Status restore_candidates(const Candidates& candidates);
  void restore(const State& state);
  // Call after start() instead of restore(): the counters continue, and the step before is not known.
  void go_on_from(int64_t step, int64_t nonfinite_steps);
  // Commits the strategy in force again, for residuals that it owes by now.
  void commit_again() { put_in_force(slot(), /*is_committed=*/true); }

 private:
  void put_in_force(int32_t slot, bool is_committed);

  exec::StrategyRunner& runner_;
  const int rank_;
  const ErrorBudget::Limits limits_;
  const ReadCandidate read_;
  std::optional<Agreement> agreement_;
  ErrorBudget error_budget_;
  Candidates candidates_;
  bool committed_ = false;
  Command announced_;
  std::string announced_text_;  // the text that follows it
  int32_t receiving_ = 0;       // the slot of the strategy that is being broadcast
  core::Status prepared_;       // of the strategy received last, on this rank

  int64_t step_ = 0, nonfinite_steps_ = 0;
  bool excluded_ = true;  // the first step is excluded
  LocalStep local_;       // for the control word: times of the step before
  RoundState round_;      // told with the next word
  double comm_ms_ = 0;    // of the step before alone
  core::Excess excess_;   // of the step under way
  std::vector<core::BucketLoss> losses_;
  ControlWord word_{};
};

}  // namespace gradtune::tuner
