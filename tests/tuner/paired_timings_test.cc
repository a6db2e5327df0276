// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/paired_timings.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "policies/cost/cost_fit.h"
#include "tests/policies/jobs.h"

namespace gradtune::tuner {
namespace {

using policies::TimedOp;

constexpr policies::IdleLinks kFar = {.flat = {.message_us = 10'100, .wait_us = 10'000, .byte_us = 0.04}};

TEST(PairedTimings, WithoutADelayEachStepIsLearned) {
  PairedTimings timings({.flat = {.message_us = 120, .wait_us = 100, .byte_us = 0.04}});
  for (const int64_t step : {3, 4}) {
    const auto learned = timings.add(0, step, {{0, 1, 5, 25, 640}});
    ASSERT_TRUE(learned);
    EXPECT_EQ(learned->front().end_us, 25);
  }
}

TEST(PairedTimings, WithADelayTwoSuccessiveStepsAreOne) {
  PairedTimings timings(kFar);
  EXPECT_FALSE(timings.add(0, 3, {{0, 1, 20, 21'000, 640}, {1, 1, 400, 27'000, -1}}));
  const auto learned = timings.add(0, 4, {{0, 1, 40, 100, 620}, {1, 1, 600, 5'000, 900}});
  ASSERT_TRUE(learned);
  EXPECT_EQ((*learned)[0].begin_us, 30);
  EXPECT_EQ((*learned)[0].end_us, 10'550);
  EXPECT_EQ((*learned)[0].bytes, 630);
  EXPECT_EQ((*learned)[1].end_us, 16'000);
  EXPECT_EQ((*learned)[1].bytes, -1);
  EXPECT_FALSE(timings.add(0, 5, {{0, 1, 40, 100, 620}})) << "each step is in one pair";
}

TEST(PairedTimings, StepsThatDoNotFollowEachOtherAreNoPair) {
  PairedTimings timings(kFar);
  const std::vector<TimedOp> ops = {{0, 1, 20, 21'000, 640}};
  EXPECT_FALSE(timings.add(0, 3, ops));
  EXPECT_FALSE(timings.add(0, 5, ops)) << "a step between was not timed";
  EXPECT_FALSE(timings.add(1, 6, ops)) << "it ran another strategy";
  EXPECT_FALSE(timings.add(1, 7, {{0, 2, 20, 21'000, 640}})) << "it had other operations";
  EXPECT_TRUE(timings.add(1, 8, {{0, 2, 20, 100, 640}}));
}

// Two ranks on a link with 10 ms and 200 Mbit/s. Its model is the same however far one rank is ahead.
TEST(PairedTimings, TheModelOfALinkDoesNotDependOnTheLeadOfARank) {
  const core::TraitsTable traits = policies::testing::known_traits();
  const core::Option gather = core::parse_option("none: encode@device all_gather decode@device", traits).value();
  const core::GradientTable table{{{.name = "all", .shape = {60'000}, .numel = 60'000}}};
  core::Strategy strategy;
  for (const core::Slice& slice : {core::Slice{0, 0, 500}, {0, 500, 9'500}, {0, 10'000, 50'000}}) {
    strategy.buckets.push_back({{slice}, gather});
  }
  for (const double lead_us : {0.0, 4'000.0, 9'000.0}) {
    PairedTimings timings(kFar);
    std::vector<policies::TimedRun> runs;
    for (int64_t step = 0; step < 4; ++step) {
      const double apart_us = step % 2 == 0 ? lead_us : -lead_us;
      std::vector<TimedOp> ops;
      double now_us = 0;
      for (size_t b = 0; b < strategy.buckets.size(); ++b) {
        const int64_t bytes = 4 * core::numel(strategy.buckets[b]);
        const double us = 10'100 + apart_us + 0.04 * static_cast<double>(bytes);
        ops.push_back({static_cast<int32_t>(b), 1, now_us, now_us + us, bytes});
        now_us += 40'000;
      }
      if (auto learned = timings.add(0, step, ops)) runs.push_back({strategy, std::move(*learned)});
    }
    ASSERT_EQ(runs.size(), 2U);
    const policies::CostTable cost = policies::fit_cost(runs, table, {.size = 2}, traits, {}, {}).table;
    const policies::CollectiveRate* const rate =
        policies::find_rate(cost, core::Step::Kind::all_gather, core::Level::flat);
    ASSERT_NE(rate, nullptr);
    EXPECT_NEAR(rate->message_us, 10'100, 100) << lead_us;
    EXPECT_NEAR(rate->byte_us, 0.04, 0.002) << lead_us;
  }
}

}  // namespace
}  // namespace gradtune::tuner
