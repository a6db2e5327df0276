// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The journal (JSON lines, schema "gradtune.journal/3") holds everything that the tuner was told, saw and decided. A
// run can be explained and replayed from it, and each strategy that it tried can be run again. Every line but the
// first has a "kind":
// - (first): the header, with the job and the "gradtune" that wrote it (older ones do not say). The members of its
//   "tuning" include "lossy_after" (steps) if it was given and "adaptive" (true) if an optimizer is. It also has:
//   - "transport" (what carries gradients) if it is known, and "compressors_from" (why these compressors)
//   - "memory_budget" (bytes) if there is one, "forward_overlap" (true) if buckets may be due at the next forward pass
//   - "idle_links" if links were probed (policies::IdleLink: "flat" over all ranks, "inter" between nodes, "intra"
//     inside one)
//   - "cores" (policies::Cores) if they are known, "collectives_at_once" (policies::Machine), and "device"
//     (policies::OnDevice) if gradients are on one
// - table: the gradients (table_json.h); again with ready times once they were observed
// - step: a report; with "excess" if a bucket exceeded its error budget
// - decision: a Decision (decision.h)
// - plan: a strategy that was put into a slot, as a strategy file in "strategy"; before the first step, the imported
//   one
// - failure: the reason why a strategy could not be prepared, before the report that tells the tuner so
// - rounds: the updates of a round from that step on, in a job that trains in rounds, with the limits and the times
//   that decided (round_length.h). It has "fragments" if there are several, "delay" if that is not 0, and
//   "chooses_delay" (true) unless it was given. A step is a round there, with the computation of one update and the
//   whole exchange (of the first fragment)
// - timing: the times of a step's operations on rank 0, and bytes of collectives and copies (policies::TimedOp):
//   [bucket, step of its program, begin, end, bytes]
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/gradient_table.h"
#include "engine/core/measurement.h"
#include "engine/core/result.h"
#include "policies/cost/cost_fit.h"
#include "tuner/error_budget.h"
#include "tuner/job.h"
#include "tuner/round_length.h"

namespace gradtune::tuner {

constexpr std::string_view kJournalSchema = "gradtune.journal/3";
constexpr size_t kMostJournalText = 4096;  // bytes of a label or a reason: readers accept no more

// One line each, without its end. `network` describes how the ranks are connected, `transport` what carries
// gradients; they are empty if that is not known.
std::string journal_header(const Job& job, std::string_view network, std::string_view transport = {});
std::string journal_line(const core::GradientTable& table);
std::string journal_line(const core::StepReport& report, Stage stage);
std::string journal_line(const Decision& decision);
// The loss of compression in each bucket on rank 0, medians of 32 steps; null if it is not known.
std::string journal_line(int64_t step, int32_t slot, const ErrorBudget::State& errors);
// Says when the operations of a step ran, in tenths of a microsecond. It precedes the report of that step, in the
// order in which the tuner is told.
std::string journal_timing_line(int64_t step, int32_t slot, const std::vector<policies::TimedOp>& ops);
std::string journal_plan_line(int64_t step, int32_t slot, const Job& job, const policies::Candidate& candidate);
std::string journal_failure_line(int64_t step, std::string_view why);
std::string journal_line(const RoundChoice& choice);

// A file for a journal. While it lives, no other journal of this or another process on this machine uses the same
// file. It is the requested file or, if that is taken, the first free one of "job.2.jsonl", "job.3.jsonl", ...
class JournalPlace {
 public:
  // Creates the file if it does not exist; otherwise the file is unchanged until a journal is opened.
  static core::Result<JournalPlace> claim(const std::string& path);
  JournalPlace(JournalPlace&& other) noexcept;
  JournalPlace& operator=(JournalPlace&& other) noexcept;
  ~JournalPlace();

  const std::string& path() const { return path_; }

 private:
  JournalPlace(std::string path, int file) : path_(std::move(path)), file_(file) {}

  std::string path_;
  int file_;  // its lock marks the file as taken; -1: moved from
};

// Writes lines to a file, some at a time. It is not thread-safe. After an error nothing more is written, and every
// later call returns that error; training continues without a journal.
class Journal {
 public:
  // Replaces the content of the file.
  static core::Result<std::unique_ptr<Journal>> open(const std::string& path, const std::string& header,
                                                     int flush_lines = 64);
  ~Journal();  // writes the remaining lines; call `flush` to know if that worked
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  core::Status write(const std::string& line);
  core::Status flush();

 private:
  Journal(std::string path, std::FILE* file, int flush_lines);

  const std::string path_;
  std::FILE* const file_;
  const int flush_lines_;
  std::string buffer_;
  int lines_ = 0;
  core::Status status_;
};

}  // namespace gradtune::tuner
