// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests the tuner's record in a checkpoint: every report, bit for bit. Jobs that end at any of their steps and
// continue from it must decide like jobs that never ended.
#include "tuner/files/replay_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/tuner/simulated_job.h"

namespace gradtune::tuner {
namespace {

using policies::Candidate;
using testing::HasSubstr;

// --- the bytes -------------------------------------------------------------------------------------------------------

core::StepReport some_report(core::Rng& rng, int64_t step) {
  return {.step = step,
          .slot = static_cast<int32_t>(rng.below(3)),
          .step_ms = 100 * rng.uniform(),
          .compute_ms_max = 50 * rng.uniform(),
          .compute_ms_min = 40 * rng.uniform(),
          .slowest_rank = static_cast<int32_t>(rng.below(4)) - 1,
          .comm_ms = rng.below(2) == 0 ? 0 : rng.uniform(),
          .work_ms = rng.uniform(),
          .excess = rng.below(20) > 0 ? core::Excess()
                                      : core::Excess{.kind = core::Excess::Kind::residual,
                                                     .bucket = static_cast<int32_t>(rng.below(9)),
                                                     .value = 100 * rng.uniform(),
                                                     .allowed = 30},
          .finite = rng.below(10) > 0,
          .excluded = rng.below(5) == 0,
          .prepared = rng.below(5) > 0,
          .failed = rng.below(10) == 0};
}

TEST(ReplayLog, GivesBackEveryBitOfEveryReport) {
  core::Rng rng(1);
  std::vector<core::StepReport> reports = {{.step = -1, .excluded = true}, {.step = 7}};
  for (int64_t step = 8; step < 5000; ++step) reports.push_back(some_report(rng, step));
  reports.push_back({.step = int64_t{1} << 48,
                     .slot = std::numeric_limits<int32_t>::max(),
                     .step_ms = std::numeric_limits<double>::denorm_min(),
                     .compute_ms_max = 1e12});
  // The same for operation times, which precede the same report as before.
  std::vector<Timing> timings;
  ReplayLog history;
  for (size_t r = 0; r < reports.size(); ++r) {
    for (uint64_t count = rng.below(10) == 0 ? rng.below(3) : 0; count > 0; --count) {
      Timing timing{.report = r, .slot = static_cast<int32_t>(rng.below(7)), .ops = {}};
      for (uint64_t op = rng.below(5); op > 0; --op) {
        timing.ops.push_back({static_cast<int32_t>(op), static_cast<int32_t>(rng.below(4)) - 1, rng.normal(), 1e6});
      }
      history.add(timing.slot, timing.ops);
      timings.push_back(std::move(timing));
    }
    history.add(reports[r], {});
  }
  const auto told = parse_replay_log(history.bytes());
  ASSERT_TRUE(told.ok()) << told.error().message;
  EXPECT_TRUE(told.value().is_whole);
  EXPECT_EQ(told.value().reports, reports);
  ASSERT_EQ(told.value().timings.size(), timings.size());
  EXPECT_GT(timings.size(), 100u);
  for (size_t t = 0; t < timings.size(); ++t) {
    const Timing& found = told.value().timings[t];
    EXPECT_EQ(found.report, timings[t].report);
    EXPECT_EQ(found.slot, timings[t].slot);
    ASSERT_EQ(found.ops.size(), timings[t].ops.size());
    for (size_t op = 0; op < found.ops.size(); ++op) {
      const policies::TimedOp &a = found.ops[op], &b = timings[t].ops[op];
      EXPECT_TRUE(a.bucket == b.bucket && a.step == b.step && a.begin_us == b.begin_us && a.end_us == b.end_us);
    }
  }
}

TEST(ReplayLog, AStepTakes41BytesWhereNothingChanges) {
  ReplayLog history;
  for (int64_t step = 0; step < 1000; ++step) history.add({.step = step, .slot = 2, .step_ms = 0.1}, {});
  EXPECT_LE(history.bytes().size(), 41'000u + 50);
}

TEST(ReplayLog, LetsGoOfWhatIsTooLongAndSaysSo) {
  ReplayLog history(/*most_reports=*/10);
  for (int64_t step = 0; step < 10; ++step) history.add({.step = step}, {});
  EXPECT_EQ(parse_replay_log(history.bytes()).value().reports.size(), 10u);
  for (int64_t step = 10; step < 30; ++step) history.add({.step = step}, {});
  EXPECT_LE(history.bytes().size(), 20u);
  const auto told = parse_replay_log(history.bytes());
  ASSERT_TRUE(told.ok()) << told.error().message;
  EXPECT_FALSE(told.value().is_whole);
  EXPECT_TRUE(told.value().reports.empty());
}

TEST(ReplayLog, WhatIsCutOffOrOutOfRangeIsRefused) {
  core::Rng rng(2);
  ReplayLog history;
  for (int64_t step = 0; step < 20; ++step) history.add(some_report(rng, step), {});
  const std::string bytes = history.bytes();
  for (size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(parse_replay_log(bytes.substr(0, size)).ok()) << size;
  EXPECT_THAT(parse_replay_log(bytes.substr(0, bytes.size() - 1)).error().message, HasSubstr("report 20"));
  EXPECT_FALSE(parse_replay_log(bytes + '\0').ok());
  std::string later = bytes;
  later[0] = 19;
  EXPECT_THAT(parse_replay_log(later).error().message, HasSubstr("says that it has 19 reports, it has 20"));
  std::string negative = bytes;
  negative.back() = static_cast<char>(0x80);  // the sign of the last time
  EXPECT_FALSE(parse_replay_log(negative).ok());
  // Any bytes are refused or have a meaning.
  for (int i = 0; i < 20'000; ++i) {
    std::string other = bytes;
    for (uint64_t changes = 1 + rng.below(3); changes > 0; --changes) {
      other[rng.below(other.size())] = static_cast<char>(rng.below(256));
    }
    const auto told = parse_replay_log(other);
    if (!told) continue;
    for (const core::StepReport& report : told.value().reports) EXPECT_GE(report.step_ms, 0);
  }
}

TEST(ReplayLog, OtherAnswersAreAMismatch) {
  ReplayLog history;
  const auto run = [](const core::StepReport& report) {
    const Command::Kind kind = report.step == 5 ? Command::Kind::run : Command::Kind::keep;
    return Action{{.kind = kind, .slot = 1, .bytes = 0}, nullptr};
  };
  for (int64_t step = 0; step < 6; ++step) history.add({.step = step}, run({.step = step}));
  const Told told = parse_replay_log(history.bytes()).value();
  const auto no_timing = [](const Timing&) {};
  EXPECT_EQ(replay(told, run, no_timing).value().command.kind, Command::Kind::run);
  const auto other = replay(
      told, [](const core::StepReport&) { return Action{}; }, no_timing);
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().code, core::Error::Code::mismatch);
  EXPECT_THAT(other.error().message, HasSubstr("decides otherwise"));
}

// --- jobs that end and go on -----------------------------------------------------------------------------------------

const Candidate kFull = candidate("fp32", 0), kHalf = candidate("bf16", 1, "bf16");
const Candidate kMerged = candidate("bf16 merged", 2, "bf16", 3), kSparse = candidate("topk", 3, "topk", 2);
const Candidate kBad = candidate("can not be prepared", 4, "bf16", 5);
constexpr Noise kNoise{.cv = 0.03, .spikes = 0.02, .drift = 0.02, .transient = 1.5};

struct Scenario {
  std::string name;
  JobOptions options;
  std::optional<Candidate> imported = {};
  int64_t steps = 300;
  int64_t every = 1;  // a job ends at each of these steps
};

std::vector<Scenario> scenarios() {
  std::vector<Scenario> all(4);
  all[0].name = "from the first step";
  all[1].name = "imported";
  all[1].imported = kSparse;
  all[1].options.preparing_steps = 3;
  all[2].name = "with a lossy one that has to wait";
  all[2].options.tuner.lossy_after = 90;
  all[2].imported = kSparse;
  all[3].name = "after alarms";
  all[3].steps = 1500;
  all[3].every = 17;
  all[3].options.factor = [](int64_t step, const std::string& label) {
    return step > 500 && step < 900 ? (label == "topk" ? 1.2 : 6) : 1;
  };
  all[3].options.comm_ms = [](int64_t step) { return step > 500 && step < 900 ? 300 : 80; };
  for (Scenario& scenario : all) {
    scenario.options.noise = kNoise;
    scenario.options.failing = {kBad.label};
    scenario.options.excluded = [](int64_t step) { return step % 37 == 36; };
    scenario.options.nonfinite = [](int64_t step, const std::string&) { return step % 53 == 52; };
  }
  return all;
}

SimulatedJob job_of(const Scenario& scenario) {
  const std::map<std::string, double> ms = {
      {kFull.label, 130}, {kHalf.label, 110}, {kMerged.label, 90}, {kSparse.label, 140}, {kBad.label, 50}};
  return SimulatedJob(scenario.options, ms, {{{kBad, kMerged, kSparse}, false}, {{kMerged, kSparse}, true}},
                      {kFull, kHalf}, scenario.imported);
}

class Interrupted : public testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Jobs, Interrupted, testing::Range(size_t{0}, scenarios().size()));

TEST_P(Interrupted, AtAnyStepItDecidesAsIfItHadNotBeen) {
  const Scenario scenario = scenarios()[GetParam()];
  SCOPED_TRACE(scenario.name);
  SimulatedJob whole = job_of(scenario);
  for (int64_t step = 0; step < scenario.steps; ++step) whole.one_step();
  ASSERT_GE(whole.decided(What::commit).size(), GetParam() == 3 ? 2u : 1u) << "there was something to decide";
  std::set<Stage> interrupted;
  for (int64_t at = 0; at < scenario.steps; at += scenario.every) {
    SimulatedJob job = job_of(scenario);
    for (int64_t step = 0; step < at; ++step) job.one_step();
    interrupted.insert(job.tuner->stage());
    job.save_and_restore();
    for (int64_t step = at; step < scenario.steps; ++step) job.one_step();
    ASSERT_EQ(job.steps, whole.steps) << "interrupted after step " << at;
    ASSERT_EQ(job.epoch(), whole.epoch());
    ASSERT_EQ(job.decisions.size(), whole.decisions.size());
    for (size_t i = 0; i < job.decisions.size(); ++i) {
      ASSERT_EQ(job.decisions[i].what, whole.decisions[i].what);
      ASSERT_EQ(job.decisions[i].value, whole.decisions[i].value);
    }
  }
  EXPECT_THAT(interrupted, testing::IsSupersetOf({Stage::race, Stage::confirm, Stage::watch}));
  EXPECT_EQ(interrupted.contains(Stage::audit), GetParam() == 3);
}

TEST(Interrupted, MoreThanOnceIsNoDifferentFromOnce) {
  const Scenario scenario = scenarios()[3];
  SimulatedJob whole = job_of(scenario), job = job_of(scenario);
  core::Rng rng(3);
  for (int64_t step = 0; step < scenario.steps; ++step) {
    whole.one_step();
    job.one_step();
    if (rng.below(60) == 0) job.save_and_restore();
  }
  EXPECT_EQ(job.steps, whole.steps);
}

// Shows that the tests above can fail: a tuner without the history decides otherwise.
TEST(Interrupted, WithoutItsHistoryItDecidesOtherwise) {
  const Scenario scenario = scenarios()[0];
  SimulatedJob whole = job_of(scenario), job = job_of(scenario);
  for (int64_t step = 0; step < 60; ++step) {
    whole.one_step();
    job.one_step();
  }
  job.history = ReplayLog();
  job.save_and_restore();
  for (int64_t step = 60; step < 75; ++step) {
    whole.one_step();
    job.one_step();
  }
  EXPECT_NE(job.steps, whole.steps);
}

}  // namespace
}  // namespace gradtune::tuner
