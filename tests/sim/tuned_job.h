// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A whole job on simulated ranks that tunes itself: the driver of a training job leads it, with its tuner and its
// journal.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/clock.h"
#include "tests/sim/job.h"
#include "tests/temp_folder.h"
#include "tests/tuner/recorded_audience.h"
#include "tuner/driver/driver.h"
#include "tuner/files/journal_reader.h"

namespace gradtune::sim {

class TunedJob {
 public:
  // Runs the job to its end. The ranks start with the baselines of `tuned`, which has the same table.
  TunedJob(JobOptions options, const tuner::Job& tuned);

  const Job& job() const { return *job_; }
  const tuner::Driver& driver() const { return driver_; }
  const tuner::JournalFile& journal() const { return journal_; }
  // Decisions of that kind, in or after a step.
  std::vector<tuner::Decision> decided(tuner::Decision::What what, int64_t since = 0) const;

 private:
  const test::TempFolder folder_;
  const std::string path_;  // of the journal
  const core::SteadyClock clock_;
  tuner::Recorded<> audience_;
  tuner::Driver driver_;
  std::unique_ptr<Job> job_;
  tuner::JournalFile journal_;
};

}  // namespace gradtune::sim
