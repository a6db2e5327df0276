// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The work that only rank 0 does. It feeds the tuner with all that a running job observes, turns the tuner's answers
// into what all ranks are told, and reports to people: journal, progress lines, warnings. A training job and a
// simulated one both run this code. It has no thread, and its only clock is for progress lines.
//
// The calls, on one thread:
// - claim_journal(), once, before the first step
// - start(), when the gradients and their order are known, or resume() from a checkpoint. A later start() begins anew.
// - in each step: the observations of the backward pass (learns_ready() ... ran()), then on_step() once the command of
//   the step's control word was carried out. Its action goes to StepProtocol::announce() with the text of text_of().
// - finish(), when training ends
// Calls before start() observe nothing. Errors of the journal never end a job: it ends with one warning.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/clock.h"
#include "engine/core/result.h"
#include "engine/exec/executor.h"
#include "tuner/content_watch.h"
#include "tuner/driver/audience.h"
#include "tuner/driver/pass_times.h"
#include "tuner/files/journal_writer.h"
#include "tuner/files/replay_log.h"
#include "tuner/files/saved_state.h"
#include "tuner/job.h"
#include "tuner/progress.h"
#include "tuner/round_length.h"
#include "tuner/standing.h"
#include "tuner/step_protocol.h"
#include "tuner/tuner.h"

namespace gradtune::tuner {

struct DriverOptions {
  Job job = {};                // without the table and the imported strategy, which start() takes
  std::string network = {};    // how the ranks are connected, for the journal
  std::string transport = {};  // what carries gradients, for people; empty: not known
  std::string journal = {};    // file; empty: none
  bool quiet = false;          // no progress lines
};

class Driver {
 public:
  // Clock and audience must outlive this object.
  Driver(DriverOptions options, const core::Clock& clock, Audience& audience);

  // Claims the journal's file if a journal was requested; the error says why that failed.
  core::Status claim_journal();

  // Makes a tuner for gradients in this order.
  void start(const core::GradientTable& table, std::optional<policies::Candidate> imported);

  // For a checkpoint, between two steps: the state that another driver needs to continue from here.
  SavedTuner saved() const;
  std::string history() const { return history_.bytes(); }

  // Ok if a tuner of this job may continue the saved one's decisions; the error says why not.
  core::Status can_resume(const SavedTuner& saved, const Told& told) const;
  // Continues from there: gives a new tuner all inputs of the saved one, and returns its last action. An error says
  // that it decided differently; call start() then.
  core::Result<Action> resume(const SavedTuner& saved, const Told& told);

  // True if it wants the times at which the gradients of a backward pass were ready; saw_ready() takes them.
  bool learns_ready() const { return learns(); }
  void saw_ready(const std::vector<ReadyTime>& times);
  // Takes the share of rows that a sparse gradient had: on this rank, and in the average.
  void saw_content(int32_t position, const RowShares& shares);
  // The same for a dense gradient, from a sample of its rows. It counts as sparse if less than half of them are
  // used.
  void saw_sample(int32_t position, const RowShares& shares);
  void learn_forward(const ForwardTimes& times);
  // True while it does not know how much of their payloads compressors use for this job's gradients.
  bool lacks_uses() const;
  void learn_uses(std::vector<core::CodecUse> uses);
  // Takes the operation times of a step that is over. The tuner gets those of the first steps of each strategy.
  void ran(int64_t step, int32_t slot, const exec::Program& program, const std::vector<exec::OpTime>& times);

  // Takes the outcome of a step from the rank's protocol; returns the action to announce next.
  Action on_step(const StepProtocol::Received& received, const StepProtocol& protocol);
  // The text that all ranks get with an action: that of a strategy file, if they are to prepare a strategy.
  std::string text_of(const Action& action) const;

  // For the journal of a job that trains in rounds.
  void chose(const RoundChoice& choice);

  // Prints the last line for people, with the state of the job, and writes the rest of the journal.
  void finish();

  // The state of the job. All but stage() and job() need a start() before.
  std::string_view stage() const;
  const Job& job() const { return job_; }
  const Standing& standing() const { return story_.standing(); }
  const Outcome& outcome() const { return tuner_->outcome(); }
  const policies::Candidate& chosen() const { return tuner_->chosen(); }
  // True if the standing changed since this was called last.
  bool take_news() { return std::exchange(has_news_, false); }

 private:
  // `machine`: this run's machine, or the one with which a saved tuner decided.
  Job job_of(const core::GradientTable& table, std::optional<policies::Candidate> imported,
             const policies::Machine& machine) const;
  void begin(Job job);
  bool learns() const;  // the job before its first decision
  bool is_pinned() const { return job_.tuning.budget_steps == 0; }

  Action decide(const core::StepReport& report);
  void learn_timing(int32_t slot, const std::vector<policies::TimedOp>& ops);
  void watch_content(int32_t position, const RowShares& shares, bool came_as_rows);

  void could_not_prepare(int64_t step, const std::string& why);
  void write_errors(int64_t step, int32_t slot, const ErrorBudget::State& errors);
  void write_plan(int64_t step, int32_t slot, const policies::Candidate& candidate);
  void note(const std::vector<Decision>& decisions);
  void write(const std::string& journal_line);
  void end_journal(const core::Error& why);
  void flush_journal();

  const DriverOptions options_;
  Audience& audience_;
  Job job_;
  std::vector<int64_t> ready_count_;  // the number of backward passes that the table's ready times are means of
  struct Sampled {
    RowShares mean = {};
    int64_t steps = 0;
  };
  std::map<int32_t, Sampled> sampled_;               // by position, while observing
  std::map<int32_t, ContentWatch> content_watches_;  // by position, after the decision
  std::map<int32_t, int> timed_;                     // for each slot, steps whose operation times the tuner got
  bool timed_in_observation_ = true;                 // the last of them
  std::unique_ptr<Tuner> tuner_;
  std::optional<JournalPlace> journal_place_;
  std::unique_ptr<Journal> journal_;  // null: not requested, or it could not be written any more
  std::optional<Progress> progress_;  // none when quiet
  Story story_;
  bool has_news_ = false;
  bool decided_ = false;   // there was a first decision
  bool resuming_ = false;  // people know these events already
  ReplayLog history_;
};

}  // namespace gradtune::tuner
