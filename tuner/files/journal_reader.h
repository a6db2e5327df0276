// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A journal read back: the job, the reports of its steps, and what was decided then, to be explained, replayed or
// turned into a trace. Files are untrusted: every line within the limits of strict_json.h, unknown and missing keys
// refused, every number in a stated range. A job that was killed leaves a last line that is cut off; it is left out.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/measurement.h"
#include "engine/core/result.h"
#include "policies/cost/cost_fit.h"
#include "tuner/files/replay_log.h"
#include "tuner/job.h"

namespace gradtune::tuner {

struct JournalFile {
  Job job;  // with ready times where the job came that far
  std::string network;
  std::vector<core::StepReport> reports;
  std::map<int32_t, core::Strategy> strategies;  // by slot, of those that were planned or timed
  std::vector<Timing> timings;                   // of slots that are among them
  std::vector<std::string> decided;              // the lines of decisions and of plans, as they are

  // What was timed, for a cost model.
  std::vector<policies::TimedRun> runs() const;
};

// Errors say which line, what was found and what is allowed.
core::Result<JournalFile> parse_journal(std::string_view text);
core::Result<JournalFile> read_journal(const std::string& path);

// The lines that the same job decides when it is told the same reports: those of `file` again, byte for byte.
core::Result<std::vector<std::string>> decide_again(const JournalFile& file);

}  // namespace gradtune::tuner
