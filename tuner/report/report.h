// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What a journal says of its job, as plain data, for people who ask: is it tuning, is it done, what did it choose, did
// it help, and why. A pure function of the journal. What journals do not hold (times of single blocks) is found by
// telling a tuner of the same job the same again; where that one decides otherwise, as another version may, it stays
// unknown and `lacks` says so. Leaves open how it is shown (summary.h, html.h).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/core/result.h"
#include "tuner/files/journal_reader.h"
#include "tuner/files/trace_file.h"
#include "tuner/report/buckets.h"
#include "tuner/report/contests.h"
#include "tuner/report/step_picture.h"
#include "tuner/standing.h"

namespace gradtune::tuner {

struct ReportStep {
  int64_t step = 0;
  int32_t slot = 0;
  double ms = 0;        // maximum over ranks
  bool counts = false;  // it is not excluded (evaluation, checkpoint, preparation), and all gradients were finite
};

// Steps in a row that were told in one stage, `end` exclusive.
struct StageRun {
  Stage stage = Stage::observe;
  int64_t begin = 0, end = 0;

  bool operator==(const StageRun&) const = default;
};

// A bucket that was over its error budget, or whose residual ran away, and what was banned therefore.
struct GuardCase {
  int64_t step = 0;
  std::string label;  // of the strategy, which does not run again
  core::Excess excess;
  std::vector<std::string> codecs = {};  // banned for the tensors of the bucket; none: only the strategy is banned
  std::string tensors = {};              // of the bucket

  bool operator==(const GuardCase&) const = default;
};

struct Report {
  Job job;
  std::string network;
  std::vector<std::string> lacks;  // what the journal does not hold, and what is missing here therefore; sentences

  // How the job stood when the journal ended, by its decisions alone, whatever a tuner of this program makes of it.
  Standing standing;
  bool has_begun = false;  // there is a step
  bool is_tuning = false;  // for the first time or again
  Stage stage = Stage::observe;
  std::optional<double> progress = {};  // of the stage, 0 to 1
  policies::Candidate chosen = {};      // the strategy that is kept; where none is, the one that runs meanwhile
  std::set<std::string> kept = {};      // labels of all that was committed, now or before
  bool decides_the_same = false;        // a tuner of this program, told the same

  std::vector<ReportStep> steps = {};  // that took time
  std::vector<StageRun> stages = {};
  Strategies strategies = {};
  int32_t baselines = 1;  // in slots 0 ... baselines - 1

  std::vector<Trial> trials = {};
  std::vector<RaceRecord> races = {};
  std::vector<PairTest> tests = {};
  std::vector<Decision> events = {};  // without the figures that the records above hold
  std::vector<GuardCase> guard = {};

  std::vector<BucketRow> buckets = {};  // of what was chosen; none if it does not fit the table
  StepPicture picture = {};             // of a step under what was chosen

  std::string label(int32_t slot) const;
};

// `trace`: ready times of the job's gradients, for a journal that ended before they were known. An error if it is of
// another model.
core::Result<Report> make_report(const JournalFile& journal, const std::optional<TraceFile>& trace = {});

}  // namespace gradtune::tuner
