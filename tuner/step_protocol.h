// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What a rank does with strategies from step to step: the glue between what runs them, the agreement of ranks, error
// budgets and rank 0's tuner. A training job and a simulated one both run this code; what differs between them is how
// they wait. No clock, thread or socket.
//
// A step, in this order:
//   begin()             as backward begins
//   control_word()      when the runner asks for it, on the thread that issues collectives
//   receive()           the reduced word: the step is concluded, and what compression lost is judged
//   carry_out()         the command of the word; a text may follow it, by broadcast from rank 0: of a prepare the
//                       strategy, which receive_strategy() takes
//   announce()          on rank 0: the command and the text that the next word brings to all
//   end_step()          what the step took, which the next word tells
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

// Reads the strategy that rank 0 broadcast; an error where it is none.
using ReadCandidate = core::Result<policies::Candidate> (*)(const std::string& text);

class StepProtocol {
 public:
  StepProtocol(exec::StrategyRunner& runner, int rank, const ErrorBudget::Limits& limits, ReadCandidate read);

  // (Again) from epoch 1: prepares these strategies and puts the one in slot `first` in force. What is committed at
  // once is never on trial. Strategies that can not be prepared are thrown.
  void start(const Candidates& ready, int32_t first, bool is_committed);

  // A step.
  void begin(uint64_t alike);  // hash of what else all ranks must have alike, such as the shapes of buffers
  // This rank has no gradient of some tensor, or a sparse one; before the word leaves.
  void tell_not_dense() { local_.not_dense = true; }
  std::span<double> control_word(bool finite);
  struct Received {
    core::StepReport report;                  // of the step before; for the tuner
    Command command;                          // to be carried out
    bool not_dense = false;                   // some rank had no gradient of some tensor, or a sparse one
    bool counts = true;                       // the step does: all ranks are finite, and so are its averages
    std::optional<std::string> failure = {};  // why the strategy received last can not be prepared, once it is known
  };
  // A mismatch: ranks differ; all of them learn so in this step.
  core::Result<Received> receive();
  // Bytes of the text that rank 0 is to broadcast now; 0: none.
  int64_t carry_out(const Command& command);
  core::Status receive_strategy(const std::string& text);  // why this rank can not prepare it, which the others learn
  void announce(const Command& command, std::string text = {});
  const std::string& announced_text() const { return announced_text_; }

  // Its time does not tell how fast the strategy is: that of the step under way, or of the one to come.
  void exclude() { excluded_ = true; }
  struct Times {
    double step_ms = 0, compute_ms = 0, comm_ms = 0;  // as in LocalStep
  };
  void end_step(const Times& times);

  int64_t step() const { return step_; }  // under way, or to come
  int64_t nonfinite_steps() const { return nonfinite_steps_; }
  int64_t epoch() const { return agreement_->epoch(); }
  int32_t slot() const { return agreement_->slot(); }  // in force
  uint64_t identity() const { return agreement_->identity(); }
  bool is_committed() const { return committed_; }  // what is in force is not on trial
  const policies::Candidate& in_force() const { return candidates_.at(slot()); }
  const Candidates& candidates() const { return candidates_; }  // that this rank has prepared

  // What compression loses on this rank, of the strategy in force.
  const ErrorBudget::State& errors() const { return error_budget_.state(); }

  // What goes into a checkpoint, between steps.
  struct State {
    int64_t step = 0, nonfinite_steps = 0;
    bool committed = false;
    LocalStep local = {};
    Agreement::State agreement = {};
    ErrorBudget::State errors = {};
  };
  State state() const;
  // The strategies first: an error of one of them leaves this rank without any, and nothing can go on.
  core::Status restore_candidates(const Candidates& candidates);
  void restore(const State& state);
  // After a start() in place of a restore(): the counters go on, and the step before is not known.
  void go_on_from(int64_t step, int64_t nonfinite_steps);
  // What is committed is so again, for what is owed by now.
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
  std::string announced_text_;  // that follows it
  int32_t receiving_ = 0;       // the slot of the strategy that is being broadcast
  core::Status prepared_;       // of the strategy received last, on this rank

  int64_t step_ = 0, nonfinite_steps_ = 0;
  bool excluded_ = true;  // the first step is
  LocalStep local_;       // for the control word: times of the step before
  core::Excess excess_;   // of the step under way
  std::vector<core::BucketLoss> losses_;
  ControlWord word_{};
};

}  // namespace gradtune::tuner
