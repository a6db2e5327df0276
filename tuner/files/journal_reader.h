// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Reads a journal back: the job, the reports of its steps, and its decisions, to explain them, replay them or make a
// trace. Files are untrusted: every line is within kJobLimits of strict_json.h, unknown and missing keys are
// refused, and every number is in a stated range. A killed job leaves an incomplete last line, which is left out.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/measurement.h"
#include "engine/core/result.h"
#include "policies/cost/cost_fit.h"
#include "tuner/files/replay_log.h"
#include "tuner/job.h"
#include "tuner/round_length.h"

namespace gradtune::tuner {

// The reason why some rank could not prepare a strategy.
struct PrepareFailure {
  size_t report = 0;  // number of reports before it
  int64_t step = 0;
  std::string why;
};

// The loss of compression in each bucket on rank 0 up to that step; none if it is not known.
struct Losses {
  int64_t step = 0;
  int32_t slot = 0;
  std::vector<std::optional<double>> errors, residuals;  // as in core::BucketLoss, medians
};

struct JournalFile {
  std::string version;  // of the gradtune that wrote it; empty: not stated
  Job job;              // with ready times if the job came that far
  std::string network;
  std::string transport;  // empty: not stated
  std::vector<core::StepReport> reports;
  std::vector<Stage> stages;                          // of the tuner when it received each report
  std::map<int32_t, policies::Candidate> strategies;  // by slot: the baselines, and planned strategies
  std::vector<Timing> timings;                        // for slots that are among the strategies
  std::vector<int64_t> timed_steps;                   // the step of each timing
  std::vector<Losses> losses;
  std::vector<Decision> decisions;  // in order; a value that JSON cannot express is a NaN
  std::vector<PrepareFailure> failures;
  std::vector<RoundChoice> rounds;   // none: each step is one update
  std::vector<std::string> decided;  // the lines of decisions and of plans, unchanged

  // The timed operations, for a cost model.
  std::vector<policies::TimedRun> runs() const;
};

// Errors give the line, the value found and the values allowed.
core::Result<JournalFile> parse_journal(std::string_view text);
core::Result<JournalFile> read_journal(const std::string& path);

// Returns a tuner of the same job that received the same reports. `after_step` sees it after each report, with the
// stage in which the report came and the tuner's answer. An imported strategy that does not fit the job is an error.
using AfterStep =
    std::function<void(Tuner& tuner, const core::StepReport& report, Stage told_in, const Action& answer)>;
core::Result<std::unique_ptr<Tuner>> run_again(const JournalFile& file, const AfterStep& after_step);

// The lines that the same job decides when it receives the same reports: those of `file` again, byte for byte.
core::Result<std::vector<std::string>> decide_again(const JournalFile& file);

}  // namespace gradtune::tuner
