// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The content of a journal as plain data, for people who ask: is it tuning, is it done, what did it choose, did it
// help, and why. It is a pure function of the journal. Data that journals do not hold (times of single blocks) come
// from a tuner of the same job that replays the same reports. If that tuner decides otherwise, as another version may,
// the data stay unknown and `lacks` says so. It leaves open how the data are shown (summary.h, html.h).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/core/result.h"
#include "tuner/files/journal_reader.h"
#include "tuner/files/trace_file.h"
#include "tuner/forecast/explanation.h"
#include "tuner/report/buckets.h"
#include "tuner/report/compared_steps.h"
#include "tuner/report/contests.h"
#include "tuner/report/round_history.h"
#include "tuner/report/step_picture.h"
#include "tuner/standing.h"

namespace gradtune::tuner {

struct ReportStep {
  int64_t step = 0;
  int32_t slot = 0;
  double ms = 0;        // over ranks, as in core::StepReport
  bool counts = false;  // it is not excluded (evaluation, checkpoint, preparation), and all gradients were finite
};

// Consecutive steps that were reported in one stage, `end` exclusive.
struct StageRun {
  Stage stage = Stage::observe;
  int64_t begin = 0, end = 0;

  bool operator==(const StageRun&) const = default;
};

// A bucket that exceeded its error budget, or whose residual ran away, and the resulting bans.
struct GuardCase {
  int64_t step = 0;
  std::string label;  // of the strategy, which does not run again
  core::Excess excess;
  std::vector<std::string> codecs = {};  // banned for the tensors of the bucket; none: only the strategy is banned
  std::string tensors = {};              // of the bucket

  bool operator==(const GuardCase&) const = default;
};

struct StepPictures {
  std::vector<ComparedStep> compared = {};  // before and after
  StepPicture chosen = {};                  // under the chosen strategy, beside a prediction
};

struct Report {
  Job job;
  std::string network, transport;  // empty: the journal does not say
  std::vector<std::string> lacks;  // data that the journal does not hold, and what is missing here as a result;
                                   // sentences

  // The state of the job when the journal ended, by its decisions alone; a tuner of this program does not affect it.
  Standing standing;
  bool has_begun = false;  // there is a step
  bool is_tuning = false;  // for the first time or again
  Stage stage = Stage::observe;
  std::optional<double> progress = {};  // of the stage, 0 to 1
  policies::Candidate chosen = {};      // the strategy that is kept; if none is, the one that runs meanwhile
  std::set<std::string> kept = {};      // labels of all strategies committed now or before
  bool decides_the_same = false;        // a tuner of this program decides the same

  std::vector<ReportStep> steps = {};  // those that have a time
  std::vector<StageRun> stages = {};
  Strategies strategies = {};
  int32_t baselines = 1;  // in slots 0 ... baselines - 1

  std::vector<Trial> trials = {};
  std::vector<RaceRecord> races = {};
  std::vector<PairTest> tests = {};
  std::vector<Decision> events = {};  // without the figures that the records above hold
  std::vector<GuardCase> guard = {};
  RoundHistory rounds = {};

  std::vector<BucketRow> buckets = {};  // of the chosen strategy; none if it does not fit the table
  StepPictures pictures = {};

  // Says why the chosen strategy is as it is; an error says what is missing for that.
  core::Result<Explanation> explanation = core::Error{core::Error::Code::invalid, "it has no strategy to explain"};

  std::string label(int32_t slot) const;
};

// `trace`: ready times of the job's gradients, for a journal that ended before they were known. A trace of another
// model is an error.
core::Result<Report> make_report(const JournalFile& journal, const std::optional<TraceFile>& trace = {});

}  // namespace gradtune::tuner
