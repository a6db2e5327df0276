// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What a tuner was told, step by step, in few bytes, and a digest of what it answered. Together with the job this is
// all that its decisions depend on. So a checkpoint holds it, and a tuner is restored by telling a new one the same
// again: no part of a tuner's or a policy's state can be forgotten, and the digest shows whether it decided the same.
//
// A step takes 33 bytes, and a few more if something changed; 10^6 steps are told again in half a second. After
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

  // In the order in which the tuner is told.
  void add(int32_t slot, const std::vector<policies::TimedOp>& ops);
  void add(const core::StepReport& report, const Action& answer);
  int64_t size() const { return size_; }

  // Little-endian: number of reports, digest of the answers, whether the log is whole (a byte), and, if so, the
  // reports.
  std::string bytes() const;

 private:
  int64_t most_reports_;
  int64_t size_ = 0;
  core::Hasher answers_;
  core::StepReport last_;
  std::string timings_;  // since the last report
  int timed_ = 0;
  std::vector<std::string> chunks_;  // so that no long run is copied as it grows
};

// When the operations of a step ran.
struct Timing {
  size_t report = 0;  // number of reports that the tuner was told before it
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
  bool is_whole = true;  // otherwise it was too long, and there are none
  uint64_t answers = 0;
};

// Errors say what was found; every number in a stated range.
core::Result<Told> parse_replay_log(std::string_view bytes);

// Tells all again and returns the last answer. A mismatch if the answers differ from the recorded ones: this is another
// version of the program, or a machine with another mathematical library.
core::Result<Action> replay(const Told& told, const std::function<Action(const core::StepReport&)>& on_step,
                            const std::function<void(const Timing&)>& learn_timing);

}  // namespace gradtune::tuner
