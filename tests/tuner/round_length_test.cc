// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/round_length.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace gradtune::tuner {
namespace {

core::StepReport report(double exchange_ms, double update_ms, double work_ms = 0) {
  return {.step_ms = update_ms + exchange_ms, .compute_ms_max = update_ms, .work_ms = work_ms};
}

// Reports until a decision may be made; returns the times that were given at the last one.
std::optional<ExchangeTimes> learn(RoundLength& length, const core::StepReport& of) {
  std::optional<ExchangeTimes> times;
  for (size_t round = 0; round < RoundLength::kRounds; ++round) times = length.learn(of);
  return times;
}

// The definition: the smallest number of updates, and for it the smallest delay, with which waiting has its share.
RoundShape by_trying_all(const ExchangeTimes& times, const UpdatesARound& allowed) {
  for (int64_t updates = allowed.least; updates <= allowed.most; ++updates) {
    const int64_t most_delay = allowed.fragments == 1 ? updates / 2 : updates / allowed.fragments;
    for (int64_t delay = allowed.delay.value_or(0); delay <= allowed.delay.value_or(most_delay); ++delay) {
      const double travels_ms = times.exchange_ms - times.work_ms;
      const double waits_ms =
          static_cast<double>(allowed.fragments) *
          (times.work_ms + std::max(0.0, travels_ms - static_cast<double>(delay) * times.update_ms));
      if (waits_ms <= kShareOfExchange * times.update_ms * static_cast<double>(updates)) {
        return {updates, delay, allowed.fragments};
      }
    }
  }
  return with_least_delay(times, allowed.most, allowed);
}

TEST(ShortestRound, HasTheLeastUpdatesAndThenTheLeastDelayWithWhichWaitingHasItsShare) {
  for (double exchange_ms = 0.013; exchange_ms < 2000; exchange_ms *= 1.07) {
    for (const double update_ms : {1.0, 7.0, 40.0}) {
      for (const double work : {0.0, 0.07, 0.5}) {
        const ExchangeTimes times{exchange_ms, update_ms, work * exchange_ms};
        for (const int64_t most : {4, 5, 8, 64}) {
          for (const UpdatesARound& allowed :
               {UpdatesARound{1, most, {}}, UpdatesARound{4, most, {}}, UpdatesARound{1, most, 0},
                UpdatesARound{4, most, 3}, UpdatesARound{1, most, {}, 2}, UpdatesARound{1, most, {}, 3},
                UpdatesARound{4, most, {}, 4}, UpdatesARound{1, most, 0, 4}, UpdatesARound{4, most, 1, 4}}) {
            EXPECT_EQ(shortest_round(times, allowed), by_trying_all(times, allowed))
                << exchange_ms << ' ' << update_ms << ' ' << work << ' ' << allowed.least << ' ' << most << ' '
                << allowed.fragments;
          }
        }
      }
    }
  }
}

TEST(ShortestRound, WithoutEnoughUpdatesHasTheLeastDelayWithWhichRanksWaitLeast) {
  EXPECT_EQ(shortest_round({100, 10}, {.most = 8, .delay = {}}), (RoundShape{8, 4}));
  EXPECT_EQ(shortest_round({35, 10, 10}, {.most = 8, .delay = {}}), (RoundShape{8, 3}));  // the work never hides
  EXPECT_EQ(shortest_round({10, 10, 10}, {.most = 8, .delay = {}}), (RoundShape{8, 0}));
}

TEST(ShortestRound, IsTheLeastNumberOfUpdatesThatAnExchangeMayTakeATwentiethOf) {
  for (const double exchange_ms : {0.1, 1.0, 3.7, 20.0, 90.0}) {
    for (const double update_ms : {1.0, 7.0, 40.0}) {
      for (const int64_t most : {1, 8, 1000}) {
        int64_t expected = 1;
        while (expected < most && exchange_ms > kShareOfExchange * update_ms * static_cast<double>(expected))
          ++expected;
        EXPECT_EQ(shortest_round({exchange_ms, update_ms}, {.most = most}), RoundShape{expected})
            << exchange_ms << ' ' << update_ms << ' ' << most;
      }
    }
  }
}

TEST(ShortestRound, IsTheLongestOneForUpdatesWithoutTimeAndOneForExchangesWithoutTime) {
  for (const auto& delay : {std::optional<int64_t>(), std::optional<int64_t>(0)}) {
    const UpdatesARound allowed{.most = 32, .delay = delay};
    EXPECT_EQ(shortest_round({1, 0}, allowed).updates, 32);
    EXPECT_EQ(shortest_round({0, 0}, allowed), RoundShape{1});
    EXPECT_EQ(shortest_round({-1, 10}, allowed), RoundShape{1});
    EXPECT_EQ(shortest_round({1e300, 1e-300}, allowed).updates, 32);
  }
  EXPECT_EQ(shortest_round({1e300, 1e-300}, {.most = 32, .delay = {}}).delay, 16);
}

TEST(RoundShape, SpreadsItsExchangesEvenlyAndEndsWithTheLastOne) {
  for (const auto& [shape, expected] : {std::pair(RoundShape{8, 0, 4}, std::vector<int64_t>{2, 4, 6, 8}),
                                        std::pair(RoundShape{7, 0, 2}, std::vector<int64_t>{4, 7}),
                                        std::pair(RoundShape{5, 0, 1}, std::vector<int64_t>{5}),
                                        std::pair(RoundShape{2, 0, 3}, std::vector<int64_t>{1, 2, 2})}) {
    for (size_t f = 0; f < expected.size(); ++f) {
      EXPECT_EQ(shape.updates_before(static_cast<int64_t>(f)), expected[f]) << shape.updates << ' ' << f;
    }
  }
}

// Two fragments fit into a round that exchanges of the whole model would fill: an exchange takes 4 updates of 20 ms.
TEST(RoundLength, WithFragmentsAnExchangeMayTakeItsShareOfARound) {
  RoundLength whole({.most = 64, .delay = {}}, {1}), parts({.most = 64, .delay = {}, .fragments = 2}, {1});
  const auto learn_times = [](RoundLength& length, const ExchangeTimes& times) {
    for (size_t round = 0; round < RoundLength::kRounds; ++round) length.learn(times);
  };
  learn_times(whole, {.exchange_ms = 80, .update_ms = 20});
  learn_times(parts, {.exchange_ms = 40, .update_ms = 20});
  EXPECT_EQ(whole.round(), (RoundShape{8, 4}));
  EXPECT_EQ(parts.round(), (RoundShape{6, 3, 2}));  // with the margin
  // A synchronous step exchanges all fragments at once.
  RoundLength dense({.most = 64, .delay = {}, .fragments = 2}, {1});
  learn(dense, report(/*exchange_ms=*/80, /*update_ms=*/20));
  EXPECT_EQ(dense.round(), parts.round());
}

TEST(RoundLength, FollowsTheMediansOfItsRounds) {
  RoundLength length({.most = 32}, /*first=*/{8});
  const auto times = learn(length, report(/*exchange_ms=*/20, /*update_ms=*/25));
  ASSERT_TRUE(times);
  EXPECT_DOUBLE_EQ(times->exchange_ms, 20);
  EXPECT_DOUBLE_EQ(times->update_ms, 25);
  EXPECT_EQ(length.round().updates, 16);
}

TEST(RoundLength, StaysWithinItsLimits) {
  RoundLength length({.least = 4, .most = 6}, /*first=*/{1});
  EXPECT_EQ(length.round().updates, 4);
  learn(length, report(0.1, 20));
  EXPECT_EQ(length.round().updates, 4);
  learn(length, report(500, 20));
  EXPECT_EQ(length.round().updates, 6);
  EXPECT_EQ(RoundLength({.least = 4, .most = 6}, /*first=*/{9}).round().updates, 6);
}

TEST(RoundLength, StaysWhileTheWantedNumberIsNear) {
  RoundLength length({.most = 32}, {10});
  EXPECT_FALSE(learn(length, report(/*exchange_ms=*/11.5, /*update_ms=*/20)));  // wants 12
  EXPECT_EQ(length.round().updates, 10);
  EXPECT_TRUE(learn(length, report(13, 20)));  // wants 13
  EXPECT_EQ(length.round().updates, 13);
}

TEST(RoundLength, ADelayThatBecameTooShortGrowsAtOnceAndOneThatIsLongerThanNeededStays) {
  RoundLength length({.least = 8, .most = 8, .delay = {}}, {.updates = 8, .delay = 1});
  EXPECT_EQ(length.round(), (RoundShape{8, 1}));
  ASSERT_TRUE(learn(length, report(/*exchange_ms=*/70, /*update_ms=*/20)));  // 3.1 updates, and a margin
  EXPECT_EQ(length.round(), (RoundShape{8, 4}));
  EXPECT_FALSE(learn(length, report(80, 20)));
  EXPECT_FALSE(learn(length, report(64, 20)));  // 3 would do
  EXPECT_EQ(length.round(), (RoundShape{8, 4}));
  ASSERT_TRUE(learn(length, report(20, 20)));
  EXPECT_EQ(length.round(), (RoundShape{8, 1}));
  EXPECT_TRUE(learn(length, report(1, 20)));
  EXPECT_EQ(length.round(), (RoundShape{8, 0}));
}

TEST(RoundLength, WithADelayRoundsAreShort) {
  RoundLength blocking({.most = 64}, {1}), delayed({.most = 64, .delay = {}}, {1});
  learn(blocking, report(/*exchange_ms=*/40, /*update_ms=*/20));
  learn(delayed, report(40, 20));
  EXPECT_EQ(blocking.round(), (RoundShape{40, 0}));
  EXPECT_EQ(delayed.round(), (RoundShape{4, 2}));
  ASSERT_TRUE(learn(delayed, report(40, 20, /*work_ms=*/9)));  // 9 updates, and a margin
  EXPECT_EQ(delayed.round(), (RoundShape{10, 2}));
}

TEST(RoundLength, FewSlowRoundsHaveNoEffect) {
  RoundLength length({.most = 32}, {4});
  for (int round = 0; round < 90; ++round) {
    EXPECT_FALSE(length.learn(report(round % 9 < 4 ? 500 : 4, 20))) << round;
  }
}

TEST(RoundLength, LeavesOutReportsThatAreNotScored) {
  RoundLength length({.most = 32}, {4});
  core::StepReport excluded = report(500, 20), nonfinite = report(500, 20);
  excluded.excluded = true;
  nonfinite.finite = false;
  EXPECT_FALSE(learn(length, excluded));
  EXPECT_FALSE(learn(length, nonfinite));
  EXPECT_EQ(length.round().updates, 4);
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
