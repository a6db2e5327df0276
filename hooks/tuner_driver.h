// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The work that only rank 0 does: it feeds the tuner, and reports to people (journal, progress lines).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/clock.h"
#include "engine/exec/executor.h"
#include "gradtune/gradtune.h"
#include "hooks/forward_observation.h"
#include "hooks/front.h"
#include "hooks/options.h"
#include "hooks/ready_times.h"
#include "tuner/content_watch.h"
#include "tuner/files/journal_writer.h"
#include "tuner/files/replay_log.h"
#include "tuner/files/saved_state.h"
#include "tuner/files/strategy_file.h"
#include "tuner/progress.h"
#include "tuner/standing.h"
#include "tuner/tuner.h"

namespace gradtune {

class TunerDriver {
 public:
  // The front must outlive this object.
  TunerDriver(const Settings& settings, const core::Seat& seat, const std::string& network,
              const policies::Machine& machine, const core::Clock& clock, Front& front);

  // Claims the journal's file if a journal was requested; the error says why that failed.
  core::Status claim_journal();

  // Makes a tuner for gradients in this order.
  void start(const core::GradientTable& table, std::optional<policies::Candidate> imported);

  // For a checkpoint, between two steps: the state that another driver needs to continue from here.
  tuner::SavedTuner saved() const;
  std::string history() const { return history_.bytes(); }

  // Ok if a tuner of this job may continue the saved one's decisions; the error says why not.
  core::Status can_resume(const tuner::SavedTuner& saved, const tuner::Told& told) const;
  // Continues from there: gives a new tuner all inputs of the saved one, and returns its last action. An error says
  // that it decided differently; call start() then.
  core::Result<tuner::Action> resume(const tuner::SavedTuner& saved, const tuner::Told& told);

  // True if it wants the times at which the gradients of a backward pass were ready; saw_ready() takes them.
  bool learns_ready() const;
  void saw_ready(const std::vector<ReadyTimes::Ready>& times);
  // Takes the share of rows that a sparse gradient had: on this rank, and in the average.
  void saw_content(int32_t position, const tuner::RowShares& shares);
  // The same for a dense gradient, from a sample of its rows. It counts as sparse if less than half of them are
  // used.
  void saw_sample(int32_t position, const tuner::RowShares& shares);
  // Takes the observations of the forward pass; a parameter without a first read is never read late.
  void learn_forward(const ForwardTimes& times);
  // True while it does not know how much of their payloads compressors use for this job's gradients.
  bool lacks_uses() const;
  void learn_uses(std::vector<core::CodecUse> uses);
  // Takes the report of a step, reduced over ranks; returns the action to announce next.
  tuner::Action on_step(const core::StepReport& report);
  // Takes the operation times of a step that is over. The tuner gets those of the first steps of each strategy.
  void ran(int64_t step, int32_t slot, const exec::Program& program, const std::vector<exec::OpTime>& times);
  // Takes the reason why the strategy that was sent last cannot be prepared; called before the report that says so.
  void could_not_prepare(int64_t step, const std::string& why);
  // Writes the compression errors up to that step to the journal: one line now and then.
  void lost(int64_t step, int32_t slot, const tuner::ErrorBudget::State& errors);
  // Writes the strategy of a prepare command to the journal.
  void planned(int64_t step, int32_t slot, const policies::Candidate& candidate);

  // Prints the last line for people, with the state of the job, and writes the rest of the journal.
  void finish();

  std::string_view stage() const;
  const policies::Candidate& chosen() const { return tuner_->chosen(); }
  std::optional<tuner::Evidence> evidence() const;
  // The decision and its evidence, for all ranks; and true if it changed since it was taken last.
  Optimizer::Result result() const;
  bool take_news() { return std::exchange(has_news_, false); }

 private:
  // `machine`: this run's machine, or the one with which a saved tuner decided.
  tuner::Job job_of(const core::GradientTable& table, std::optional<policies::Candidate> imported,
                    const policies::Machine& machine) const;
  void begin(tuner::Job job);
  void write(const std::string& journal_line);
  void end_journal(const core::Error& why);
  void note(const std::vector<tuner::Decision>& decisions);
  void flush_journal();
  void learn_timing(int32_t slot, const std::vector<policies::TimedOp>& ops);
  void watch_content(int32_t position, const tuner::RowShares& shares, bool came_as_rows);

  const Settings settings_;
  const core::Seat seat_;
  const std::string network_;
  const policies::Machine machine_;
  Front& front_;
  tuner::Job job_;
  std::vector<int64_t> ready_count_;  // the number of backward passes that the table's ready times are means of
  struct Sampled {
    tuner::RowShares mean = {};
    int64_t steps = 0;
  };
  std::map<int32_t, Sampled> sampled_;                      // by position, while observing
  std::map<int32_t, tuner::ContentWatch> content_watches_;  // by position, after the decision
  std::map<int32_t, int> timed_;                            // for each slot, steps whose operation times the tuner got
  bool timed_in_observation_ = true;                        // the last of them
  std::unique_ptr<tuner::Tuner> tuner_;
  std::optional<tuner::JournalPlace> journal_place_;
  std::unique_ptr<tuner::Journal> journal_;  // null: not requested, or it could not be written any more
  std::optional<tuner::Progress> progress_;  // none when quiet
  tuner::Story story_;
  bool has_news_ = false;  // the result changed since it was taken last
  bool decided_ = false;   // there was a first decision
  bool resuming_ = false;  // people know these events already
  tuner::ReplayLog history_;
};

}  // namespace gradtune
