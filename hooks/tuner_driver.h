// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What rank 0 does beyond the other ranks: feeds the tuner, and tells people what it does (journal, progress lines).
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
  // The front must outlive it.
  TunerDriver(const Settings& settings, const core::Seat& seat, const std::string& network,
              const policies::Machine& machine, const core::Clock& clock, Front& front);

  // Where one was asked for: its file, or why there can be none.
  core::Status claim_journal();

  // A tuner for gradients in this order.
  void start(const core::GradientTable& table, std::optional<policies::Candidate> imported);

  // Between two steps, for a checkpoint: what another driver needs to go on from here.
  tuner::SavedTuner saved() const;
  std::string history() const { return history_.bytes(); }

  // Whether a tuner of this job may decide as that one did; the error says why not.
  core::Status can_resume(const tuner::SavedTuner& saved, const tuner::Told& told) const;
  // Goes on from there: tells a new tuner all that the other one was told, and returns what it announced last. After an
  // error, which says that it decided otherwise, start() it anew.
  core::Result<tuner::Action> resume(const tuner::SavedTuner& saved, const tuner::Told& told);

  // Whether it wants to be told when the gradients of a backward pass were ready, and that.
  bool learns_ready() const;
  void saw_ready(const std::vector<ReadyTimes::Ready>& times);
  // How large a share of its rows a sparse gradient had: on this rank, and in the average.
  void saw_content(int32_t position, const tuner::RowShares& shares);
  // The same of a dense gradient, of a sample of its rows. It counts as sparse where less than half of them are used.
  void saw_sample(int32_t position, const tuner::RowShares& shares);
  // What was seen of the forward pass; a parameter with no first read is never read late.
  void learn_forward(const ForwardTimes& times);
  // Whether it does not know yet how much of their payloads compressors use for this job's gradients.
  bool lacks_uses() const;
  void learn_uses(std::vector<core::CodecUse> uses);
  // A step reduced over ranks; what to announce next.
  tuner::Action on_step(const core::StepReport& report);
  // When the operations of a step ran that is over. Of the first steps of each strategy the tuner is told.
  void ran(int64_t step, int32_t slot, const exec::Program& program, const std::vector<exec::OpTime>& times);
  // Why what was sent last can not be prepared; before the report that says so.
  void could_not_prepare(int64_t step, const std::string& why);
  // What compression lost up to that step, for the journal: one line now and then.
  void lost(int64_t step, int32_t slot, const tuner::ErrorBudget::State& errors);
  // What a prepare command sends, for the journal.
  void planned(int64_t step, int32_t slot, const policies::Candidate& candidate);

  // The last line for people: how the job stands; and the rest of the journal.
  void finish();

  std::string_view stage() const;
  const policies::Candidate& chosen() const { return tuner_->chosen(); }
  std::optional<tuner::Evidence> evidence() const;
  // What is decided, and what it rests on, for all ranks; and whether that changed since it was taken last.
  Optimizer::Result result() const;
  bool take_news() { return std::exchange(has_news_, false); }

 private:
  // `machine`: this run's, or what a saved tuner decided with.
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
  std::vector<int64_t> ready_count_;  // backward passes that the table's ready times are the means of
  struct Sampled {
    tuner::RowShares mean = {};
    int64_t steps = 0;
  };
  std::map<int32_t, Sampled> sampled_;                      // by position, while observing
  std::map<int32_t, tuner::ContentWatch> content_watches_;  // by position, once it was decided
  std::map<int32_t, int> timed_;                            // steps of each slot of whose operations the tuner was told
  bool timed_in_observation_ = true;                        // the last of them
  std::unique_ptr<tuner::Tuner> tuner_;
  std::optional<tuner::JournalPlace> journal_place_;
  std::unique_ptr<tuner::Journal> journal_;  // null: not asked for, or it could not be written any more
  std::optional<tuner::Progress> progress_;  // none when quiet
  tuner::Story story_;
  bool has_news_ = false;  // the result is another one than when it was asked for last
  bool decided_ = false;   // for the first time
  bool resuming_ = false;  // what happens is told to people already
  tuner::ReplayLog history_;
};

}  // namespace gradtune
