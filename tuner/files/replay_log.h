// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Everything that a tuner was told, step by step, in few bytes, and a digest of its answers. Together with the job,
// all its decisions depend only on this. So a checkpoint holds the log, and a new tuner that is told the same again
// restores the old one. No part of a tuner's or a policy's state can be forgotten, and the digest shows if it
// decided the same.
//
// A step takes 41 bytes, and a few more if something changed; 10^6 steps are replayed in half a second. After
// kMostReports steps (35 MB) the log drops everything and says so. Tuning then begins anew when the job is restored.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/hash.h"
#include "engine/core/measurement.h"
#include "engine/core/result.h"
#include "tuner/tuner.h"

namespace gradtune::tuner {

constexpr int64_t kMostReports = int64_t{1} << 20;

class ReplayLog {
 public:
  explicit ReplayLog(int64_t most_reports = kMostReports) : most_reports_(most_reports) {}

  // Call in the order in which the tuner is told.
  void add(int32_t slot, const std::vector<policies::TimedOp>& ops);
  void add(const core::StepReport& report, const Action& answer);
  int64_t size() const { return size_; }

  // Little-endian: number of reports, digest of the answers, a byte that tells if the log is whole, and if so, the
  // reports.
  std::string bytes() const;

 private:
  int64_t most_reports_;
  int64_t size_ = 0;
  core::Hasher answers_;
  core::StepReport last_;
  std::string timings_;  // since the last report
  int timed_ = 0;
  std::vector<std::string> chunks_;  // in chunks, so that a long run is not copied as it grows
};

// When the operations of a step ran.
struct Timing {
  size_t report = 0;  // number of reports that the tuner received before it
  int32_t slot = 0;
  std::vector<policies::TimedOp> ops;
};

// Calls on_step(report) and learn_timing(timing) for all of them in the order in which a tuner was told.
template <typename OnStep, typename LearnTiming>
void tell(const std::vector<core::StepReport>& reports, const std::vector<Timing>& timings, const OnStep& on_step,
          const LearnTiming& learn_timing) {
  auto timing = timings.begin();
  for (size_t r = 0; r < reports.size(); ++r) {
    for (; timing != timings.end() && timing->report <= r; ++timing) learn_timing(*timing);
    on_step(reports[r]);
  }
}

struct Told {
  std::vector<core::StepReport> reports;
  std::vector<Timing> timings;
  bool is_whole = true;  // false: the log was too long, and there are no reports
  uint64_t answers = 0;
};

// Errors say what was found; every number is in a stated range.
core::Result<Told> parse_replay_log(std::string_view bytes);

// Replays all reports and returns the last answer. Returns a mismatch if the answers differ from the recorded ones:
// this is another version of the program, or a machine with another mathematical library.
core::Result<Action> replay(const Told& told, const std::function<Action(const core::StepReport&)>& on_step,
                            const std::function<void(const Timing&)>& learn_timing);

}  // namespace gradtune::tuner
