// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/round_length.h"

#include <gtest/gtest.h>

namespace gradtune::tuner {
namespace {

core::StepReport report(double exchange_ms, double update_ms) {
  return {.step_ms = update_ms + exchange_ms, .compute_ms_max = update_ms};
}

// Reports until a decision may be made; returns the times that were given at the last one.
std::optional<RoundLength::Times> learn(RoundLength& length, const core::StepReport& of) {
  std::optional<RoundLength::Times> times;
  for (size_t round = 0; round < RoundLength::kRounds; ++round) times = length.learn(of);
  return times;
}

TEST(ShortestRound, IsTheLeastNumberOfUpdatesThatAnExchangeMayTakeATwentiethOf) {
  for (const double exchange_ms : {0.1, 1.0, 3.7, 20.0, 90.0}) {
    for (const double update_ms : {1.0, 7.0, 40.0}) {
      for (const int64_t most : {1, 8, 1000}) {
        int64_t expected = 1;
        while (expected < most && exchange_ms > kShareOfExchange * update_ms * static_cast<double>(expected))
          ++expected;
        EXPECT_EQ(shortest_round(exchange_ms, update_ms, {.most = most}), expected)
            << exchange_ms << ' ' << update_ms << ' ' << most;
      }
    }
  }
}

TEST(ShortestRound, IsTheLongestOneForUpdatesWithoutTimeAndOneForExchangesWithoutTime) {
  EXPECT_EQ(shortest_round(1, 0, {.most = 32}), 32);
  EXPECT_EQ(shortest_round(0, 0, {.most = 32}), 1);
  EXPECT_EQ(shortest_round(-1, 10, {.most = 32}), 1);
  EXPECT_EQ(shortest_round(1e300, 1e-300, {.most = 32}), 32);
}

TEST(RoundLength, FollowsTheMediansOfItsRounds) {
  RoundLength length({.most = 32}, /*first=*/8);
  const auto times = learn(length, report(/*exchange_ms=*/20, /*update_ms=*/25));
  ASSERT_TRUE(times);
  EXPECT_DOUBLE_EQ(times->exchange_ms, 20);
  EXPECT_DOUBLE_EQ(times->update_ms, 25);
  EXPECT_EQ(length.updates(), 16);
}

TEST(RoundLength, StaysWithinItsLimits) {
  RoundLength length({.least = 4, .most = 6}, /*first=*/1);
  EXPECT_EQ(length.updates(), 4);
  learn(length, report(0.1, 20));
  EXPECT_EQ(length.updates(), 4);
  learn(length, report(500, 20));
  EXPECT_EQ(length.updates(), 6);
  EXPECT_EQ(RoundLength({.least = 4, .most = 6}, /*first=*/9).updates(), 6);
}

TEST(RoundLength, StaysWhileTheWantedNumberIsNear) {
  RoundLength length({.most = 32}, 10);
  EXPECT_FALSE(learn(length, report(/*exchange_ms=*/11.5, /*update_ms=*/20)));  // wants 12
  EXPECT_EQ(length.updates(), 10);
  EXPECT_TRUE(learn(length, report(13, 20)));  // wants 13
  EXPECT_EQ(length.updates(), 13);
}

TEST(RoundLength, FewSlowRoundsHaveNoEffect) {
  RoundLength length({.most = 32}, 4);
  for (int round = 0; round < 90; ++round) {
    EXPECT_FALSE(length.learn(report(round % 9 < 4 ? 500 : 4, 20))) << round;
  }
}

TEST(RoundLength, LeavesOutReportsThatAreNotScored) {
  RoundLength length({.most = 32}, 4);
  core::StepReport excluded = report(500, 20), nonfinite = report(500, 20);
  excluded.excluded = true;
  nonfinite.finite = false;
  EXPECT_FALSE(learn(length, excluded));
  EXPECT_FALSE(learn(length, nonfinite));
  EXPECT_EQ(length.updates(), 4);
}

// Steps of 8 updates and of 1 with the same exchange give the same report.
TEST(WithOneUpdate, LeavesTheExchangeOfTheSlowestRank) {
  const core::StepReport round{
      .step_ms = 8 * 20 + 35, .compute_ms_max = 8 * 20, .compute_ms_min = 8 * 15, .comm_ms = 30};
  const core::StepReport one = core::with_one_update(round, 8);
  EXPECT_DOUBLE_EQ(one.step_ms, 20 + 35);
  EXPECT_DOUBLE_EQ(one.compute_ms_max, 20);
  EXPECT_DOUBLE_EQ(one.compute_ms_min, 15);
  EXPECT_DOUBLE_EQ(one.comm_ms, 30);
  EXPECT_EQ(core::with_one_update(round, 1), round);
}

}  // namespace
}  // namespace gradtune::tuner
