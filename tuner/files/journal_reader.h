// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A journal read back: the job, the reports of its steps, and what was decided then, to be explained, replayed or
// turned into a trace. Files are untrusted: every line within kJobLimits of strict_json.h, unknown and missing keys
// refused, every number in a stated range. A job that was killed leaves a last line that is cut off; it is left out.
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

namespace gradtune::tuner {

// Why some rank could not prepare a strategy.
struct PrepareFailure {
  size_t report = 0;  // number of reports before it
  int64_t step = 0;
  std::string why;
};

// What compression lost of each bucket on rank 0 up to that step; none where it is not known.
struct Losses {
  int64_t step = 0;
  int32_t slot = 0;
  std::vector<std::optional<double>> errors, residuals;  // as core::BucketLoss has them, medians
};

struct JournalFile {
  std::string version;  // of the gradtune that wrote it; empty: it does not say
  Job job;              // with ready times where the job came that far
  std::string network;
  std::vector<core::StepReport> reports;
  std::vector<Stage> stages;                          // of the tuner when it was told each report
  std::map<int32_t, policies::Candidate> strategies;  // by slot: the baselines, and what was planned
  std::vector<Timing> timings;                        // of slots that are among them
  std::vector<Losses> losses;
  std::vector<Decision> decisions;  // in order; a value that is no number in JSON is a NaN
  std::vector<PrepareFailure> failures;
  std::vector<std::string> decided;  // the lines of decisions and of plans, as they are

  // What was timed, for a cost model.
  std::vector<policies::TimedRun> runs() const;
};

// Errors say which line, what was found and what is allowed.
core::Result<JournalFile> parse_journal(std::string_view text);
core::Result<JournalFile> read_journal(const std::string& path);

// A tuner of the same job that was told the same. `after_step` sees it after each report, with the stage in which it
// was told and what it answered. An error where the imported strategy does not fit the job.
using AfterStep =
    std::function<void(Tuner& tuner, const core::StepReport& report, Stage told_in, const Action& answer)>;
core::Result<std::unique_ptr<Tuner>> run_again(const JournalFile& file, const AfterStep& after_step);

// The lines that the same job decides when it is told the same reports: those of `file` again, byte for byte.
core::Result<std::vector<std::string>> decide_again(const JournalFile& file);

}  // namespace gradtune::tuner
