// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests steps that are drawn from journals: spans of hand-written journals exactly, those of recorded jobs by their
// properties.
#include "tuner/report/measured_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "engine/compress/compressor.h"
#include "tests/tuner/journal_job.h"
#include "tuner/files/file_io.h"
#include "tuner/files/journal_writer.h"

namespace gradtune::tuner {
namespace {

using testing::ElementsAre;

constexpr int32_t kSlot = 7;

Job job() {
  return journal_job({{{.name = "w", .shape = {3000}, .numel = 3000}, {.name = "b", .shape = {10}, .numel = 10}}});
}

core::Option option(std::string_view text) { return core::parse_option(text, compress::known_traits()).value(); }

// Bucket 0 is compressed, bucket 1 is summed in fp32.
policies::Candidate candidate() {
  core::Strategy strategy = core::uniform({{{0, 0, 3000}}, {{1, 0, 10}}}, core::plain_all_reduce(), 2);
  strategy.buckets[0].option = option("topk:0.02: encode@device all_gather decode@device");
  return {std::move(strategy), "mine"};
}

core::StepReport step_of(int64_t step, double step_ms) {
  return {.step = step,
          .slot = kSlot,
          .step_ms = step_ms,
          .compute_ms_max = 2.6,
          .compute_ms_min = 2.3,
          .slowest_rank = 3,
          .prepared = true};
}

// In us: the exchange takes 3000, most of it for bucket 0.
const std::vector<policies::TimedOp> kOps = {
    {0, 0, 500, 900}, {0, 1, 1000, 2600}, {0, 2, 2600, 3000}, {1, -1, 0, 100}, {1, 0, 200, 1000}};

struct Step {
  core::StepReport report;
  bool is_timed = true;
};

JournalFile journal(const std::vector<Step>& steps, const policies::Candidate& planned = candidate()) {
  std::string text = journal_header(job(), "") + "\n" + journal_line(job().table) + "\n" +
                     journal_plan_line(0, kSlot, job(), planned) + "\n";
  for (const auto& [report, is_timed] : steps) {
    if (is_timed) text += journal_timing_line(report.step, kSlot, kOps) + "\n";
    text += journal_line(report, Stage::partition) + "\n";
  }
  return parse_journal(text).value();
}

Bar computed(double begin_us, double end_us) { return {Lane::computation, -1, "computation", begin_us, end_us}; }

// The step takes 5 ms, so the exchange begins after 2 ms. Rank 0 is not the slowest one and computes for 2.3 ms.
TEST(MeasuredStep, EndsWithItsLastOperation) {
  const auto step = measured_step(journal({{step_of(4, 5)}}), kSlot);
  ASSERT_TRUE(step);
  EXPECT_EQ(step->step, 4);
  EXPECT_EQ(step->slot, kSlot);
  EXPECT_EQ(step->length_us, 5000);
  EXPECT_THAT(step->bars,
              ElementsAre(computed(0, 2000), computed(2100, 2400),  //
                          Bar{Lane::encode, 0, "encode", 2500, 2900}, Bar{Lane::link, 0, "all_gather", 3000, 4600},
                          Bar{Lane::decode, 0, "decode", 4600, 5000}, Bar{Lane::encode, 1, "scale", 2000, 2100},
                          Bar{Lane::link, 1, "all_reduce", 2200, 3000}));
}

TEST(MeasuredStep, TheSlowestRankComputesLongest) {
  core::StepReport report = step_of(4, 5);
  report.slowest_rank = 0;
  const auto step = measured_step(journal({{report}}), kSlot);
  ASSERT_TRUE(step);
  ASSERT_GE(step->bars.size(), 3U);
  EXPECT_EQ(step->bars[0], computed(0, 2000));
  EXPECT_EQ(step->bars[1], computed(2100, 2500));
  EXPECT_EQ(step->bars[2].begin_us, 2900) << "behind the encoding, which is in the same thread";
  EXPECT_NEAR(step->bars[2].end_us, 3100, 1e-6);
}

// Work on host cores runs beside computation.
TEST(MeasuredStep, WorkOnHostCoresLeavesTheThreadAlone) {
  policies::Candidate planned = candidate();
  planned.strategy.buckets[0].option = option("topk:0.02: encode@host all_gather decode@host");
  const auto step = measured_step(journal({{step_of(4, 5)}}, planned), kSlot);
  ASSERT_TRUE(step);
  ASSERT_EQ(step->bars.size(), 7U);
  EXPECT_EQ(step->bars[1], computed(2100, 2400));
  EXPECT_EQ(step->bars[2].lane, Lane::host_encode);
  EXPECT_EQ(step->bars[4].lane, Lane::host_decode);
}

TEST(MeasuredStep, ABucketThatIsDueAtForwardEndsAfterIt) {
  policies::Candidate planned = candidate();
  planned.strategy.buckets[0].due = core::Due::forward;
  const auto step = measured_step(journal({{step_of(4, 5)}}, planned), kSlot);
  ASSERT_TRUE(step);
  EXPECT_EQ(step->length_us, 5000);
  const auto end_of = [&](int32_t bucket) {
    double end_us = 0;
    for (const Bar& bar : step->bars) end_us = std::max(end_us, bar.bucket == bucket ? bar.end_us : 0);
    return end_us;
  };
  EXPECT_EQ(end_of(1), 5000);
  EXPECT_EQ(end_of(0), 7000);
}

// Steps without times count for the median as well.
TEST(MeasuredStep, IsNearTheMedianAndCounts) {
  std::vector<Step> steps = {{step_of(1, 9)},          {step_of(2, 5.4)}, {step_of(3, 5.3)},     {step_of(4, 5)},
                             {step_of(5, 4.7), false}, {step_of(6, 5.3)}, {step_of(7, 4), false}};
  steps[3].report.excluded = true;
  ASSERT_EQ(measured_step(journal(steps), kSlot)->step, 6) << "the last one, as the median is 5.3";
  steps[5].report.finite = false;
  EXPECT_EQ(measured_step(journal(steps), kSlot)->step, 3);
  EXPECT_EQ(measured_step(journal(steps), kSlot, 8.5)->step, 1) << "near a given length";
  for (Step& step : steps) step.report.excluded = true;
  EXPECT_FALSE(measured_step(journal(steps), kSlot));
}

TEST(MeasuredStep, NothingIsDrawnWithoutTimesOrItsReport) {
  EXPECT_FALSE(measured_step(journal({{step_of(4, 5), false}}), kSlot));
  EXPECT_FALSE(measured_step(journal({{step_of(4, 5)}}), 0)) << "another slot";
  std::string text = journal_header(job(), "") + "\n" + journal_line(job().table) + "\n" +
                     journal_plan_line(0, kSlot, job(), candidate()) + "\n" + journal_timing_line(4, kSlot, kOps) +
                     "\n" + journal_line(step_of(3, 5), Stage::partition) + "\n";
  EXPECT_FALSE(measured_step(parse_journal(text).value(), kSlot)) << "the journal ended before the step's report";
}

// Damaged figures: an exchange that is longer than its step.
TEST(MeasuredStep, IsAsLongAsItsOperations) {
  const auto step = measured_step(journal({{step_of(4, 1)}}), kSlot);
  ASSERT_TRUE(step);
  EXPECT_EQ(step->length_us, 3000);
  EXPECT_EQ(step->bars.back(), (Bar{Lane::link, 1, "all_reduce", 200, 1000}));
}

TEST(Lines, BarsThatOverlapAreOnDifferentLines) {
  const Bar first{Lane::link, 0, "all_reduce", 0, 10}, second{Lane::link, 1, "all_reduce", 5, 15},
      third{Lane::link, 2, "all_reduce", 10, 20}, encode{Lane::encode, 2, "encode", 7, 8};
  const auto lanes = in_lines({third, second, first, encode}, 6);
  ASSERT_EQ(lanes.size(), 2U);
  EXPECT_EQ(lanes[0].lane, Lane::encode);
  EXPECT_EQ(lanes[1].lane, Lane::link);
  EXPECT_THAT(lanes[1].lines, ElementsAre(ElementsAre(first, third), ElementsAre(second)));
  EXPECT_THAT(in_lines({third, second, first}, 1)[0].lines, ElementsAre(ElementsAre(first, second, third)));
}

class RecordedStep : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Journals, RecordedStep, testing::Values("half_1gbit", "imported_200mbit", "lossy_200mbit"));

TEST_P(RecordedStep, LiesWithinTheStepAndKeepsAllOperations) {
  const std::string path = std::string(GRADTUNE_JOURNALS "/") + GetParam() + ".jsonl";
  const JournalFile file = parse_journal(read_file(path, 1 << 20).value()).value();
  int steps = 0;
  for (const auto& [slot, planned] : file.strategies) {
    const auto step = measured_step(file, slot);
    if (!step) continue;
    ++steps;
    const auto timed = std::ranges::find(file.timed_steps, step->step);
    ASSERT_NE(timed, file.timed_steps.end());
    const Timing& timing = file.timings[static_cast<size_t>(timed - file.timed_steps.begin())];
    const auto report = std::ranges::find(file.reports, step->step, &core::StepReport::step);
    ASSERT_NE(report, file.reports.end());
    EXPECT_EQ(step->length_us, 1e3 * report->step_ms);
    std::vector<Bar> operations;
    double computed_us = 0;
    for (const Bar& bar : step->bars) {
      EXPECT_GE(bar.begin_us, 0);
      EXPECT_LE(bar.begin_us, bar.end_us);
      EXPECT_LE(bar.end_us, step->length_us + 1e-6);
      if (bar.lane == Lane::computation) computed_us += bar.end_us - bar.begin_us;
      if (bar.bucket >= 0) operations.push_back(bar);
    }
    ASSERT_EQ(operations.size(), timing.ops.size());
    const double shift_us = operations[0].begin_us - timing.ops[0].begin_us;
    for (size_t o = 0; o < operations.size(); ++o) {
      EXPECT_EQ(operations[o].bucket, timing.ops[o].bucket);
      EXPECT_NEAR(operations[o].begin_us - timing.ops[o].begin_us, shift_us, 1e-6);
      EXPECT_NEAR(operations[o].end_us - timing.ops[o].end_us, shift_us, 1e-6);
    }
    EXPECT_GT(computed_us, 0);
    EXPECT_LE(computed_us, 1e3 * report->compute_ms_max + 1e-6);
    std::vector<Bar> thread = step->bars;
    std::erase_if(thread, [](const Bar& bar) { return bar.lane == Lane::link; });
    for (Bar& bar : thread) bar.lane = Lane::encode;
    EXPECT_THAT(in_lines(thread, 6)[0].lines, testing::SizeIs(1)) << "a thread does one thing at a time";
  }
  EXPECT_GE(steps, 3);
}

}  // namespace
}  // namespace gradtune::tuner
