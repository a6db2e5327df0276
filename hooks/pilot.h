// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What rank 0 does beyond the other ranks: feeds the tuner, and tells people what it does (journal, progress lines).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/clock.h"
#include "engine/exec/executor.h"
#include "gradtune/gradtune.h"
#include "hooks/options.h"
#include "tuner/journal.h"
#include "tuner/progress.h"
#include "tuner/strategy_file.h"
#include "tuner/tuner.h"

namespace gradtune {

class Pilot {
 public:
  Pilot(const Settings& settings, const core::Seat& seat, const std::string& network, const core::Clock& clock);

  // A tuner for gradients in this order.
  void start(const core::GradientTable& table, std::optional<policies::Candidate> imported);

  // When a gradient was ready, since the first one of the same backward pass.
  void saw_ready(int32_t position, double ready_us);
  // A step reduced over ranks; what to announce next.
  tuner::Action on_step(const core::StepReport& report);
  // When the operations of a step ran that is over. Of the first steps of each strategy the tuner is told.
  void ran(int64_t step, int32_t slot, const exec::Program& program, const std::vector<exec::OpTime>& times);
  // What a prepare command sends, for the journal.
  void planned(int64_t step, int32_t slot, const policies::Candidate& candidate);

  // The last line for people, and the rest of the journal.
  void finish();

  std::string stage() const;
  const policies::Candidate& chosen() const { return tuner_->chosen(); }
  std::optional<tuner::Evidence> evidence() const;
  Optimizer::Result result() const;

 private:
  void write(const std::string& journal_line);
  void note(const tuner::Decision& decision);

  const Settings settings_;
  const core::Seat seat_;
  const std::string network_;
  tuner::Job job_;
  std::vector<double> ready_sum_us_;
  std::vector<int> ready_count_;
  std::map<int32_t, int> timed_;  // steps of each slot of whose operations the tuner was told
  tuner::Stage timed_in_ = tuner::Stage::observe;
  std::unique_ptr<tuner::Tuner> tuner_;
  std::unique_ptr<tuner::Journal> journal_;  // null: not asked for, or it could not be written any more
  std::optional<tuner::Progress> progress_;  // none when quiet
  std::string baseline_label_, why_baseline_;
  bool decided_ = false;  // for the first time
};

}  // namespace gradtune
