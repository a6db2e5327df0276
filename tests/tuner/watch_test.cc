// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/watch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "engine/core/rng.h"

namespace gradtune::tuner {
namespace {

// A step as it is on average.
struct Level {
  double step_ms = 100, slowest_ms = 62, fastest_ms = 60, comm_ms = 40;
};

class Steps {
 public:
  explicit Steps(uint64_t seed) : rng_(seed) {}

  // The first finding within this many steps, and the number of steps.
  std::optional<Finding> run(const Level& level, int steps) {
    for (seen = 1; seen <= steps; ++seen) {
      const auto noisy = [&](double ms) { return ms * std::exp(0.04 * rng_.normal()); };
      const auto found = watch_.record({.step_ms = noisy(level.step_ms),
                                        .compute_ms_max = noisy(level.slowest_ms),
                                        .compute_ms_min = noisy(level.fastest_ms),
                                        .slowest_rank = rng_.uniform() < 0.8 ? 3 : 1,
                                        .comm_ms = noisy(level.comm_ms)});
      if (found) return found;
    }
    return {};
  }

  const Watch& watch() const { return watch_; }

  int seen = 0;

 private:
  core::Rng rng_;
  Watch watch_;
};

TEST(Watch, IsSilentWhereNothingMoves) {
  Steps steps(1);
  EXPECT_FALSE(steps.run({}, 20'000));
}

TEST(Watch, FindsASlowerAndAFasterStep) {
  for (double factor : {1.2, 1 / 1.2}) {
    Steps steps(2);
    ASSERT_FALSE(steps.run({}, 200));
    const auto found = steps.run({.step_ms = 100 * factor}, 60);
    ASSERT_TRUE(found) << factor;
    EXPECT_EQ(found->kind, Finding::Kind::drift);
    EXPECT_NEAR(found->log_shift, std::log(factor), 0.1);
  }
}

TEST(Watch, FindsAFasterLinkThatTheStepTimeDoesNotShow) {
  Steps steps(3);
  ASSERT_FALSE(steps.run({}, 200));
  const auto found = steps.run({.comm_ms = 15}, 60);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->kind, Finding::Kind::link);
  EXPECT_LT(found->log_shift, std::log(0.6));
}

TEST(Watch, NamesTheRankThatHoldsUpTheOthers) {
  Steps steps(4);
  ASSERT_FALSE(steps.run({}, 200));
  const auto found = steps.run({.step_ms = 140, .slowest_ms = 102}, 60);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->kind, Finding::Kind::straggler);
  EXPECT_EQ(found->rank, 3);
}

TEST(Watch, KnowsTheRankBeforeThereIsEvidenceEnough) {
  const std::pair<Level, std::optional<int32_t>> cases[] = {
      {{}, std::nullopt},
      {{.step_ms = 140, .slowest_ms = 102}, 3},
      {{.step_ms = 140, .slowest_ms = 102, .fastest_ms = 100}, std::nullopt},
      {{.step_ms = 140}, std::nullopt},
      {{.slowest_ms = 102}, std::nullopt},  // hidden: no rank waits for it
  };
  for (const auto& [level, expected] : cases) {
    Steps steps(7);
    ASSERT_FALSE(steps.run({}, 200));
    ASSERT_FALSE(steps.run(level, 10));
    EXPECT_EQ(steps.watch().straggler(), expected);
  }
  Steps steps(7);
  ASSERT_FALSE(steps.run({.step_ms = 140, .slowest_ms = 102}, 40));
  EXPECT_FALSE(steps.watch().straggler()) << "it learns what is usual yet";
}

TEST(Watch, AllRanksSlowerIsNoStraggler) {
  Steps steps(5);
  ASSERT_FALSE(steps.run({}, 200));
  const auto found = steps.run({.step_ms = 140, .slowest_ms = 102, .fastest_ms = 100}, 60);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->kind, Finding::Kind::drift);
}

TEST(Watch, AfterAFindingItLearnsTheNewLevel) {
  Steps steps(6);
  ASSERT_FALSE(steps.run({}, 200));
  ASSERT_TRUE(steps.run({.step_ms = 150}, 60));
  EXPECT_FALSE(steps.run({.step_ms = 150}, 1'000));
  EXPECT_TRUE(steps.run({.step_ms = 100}, 60));
}

int steps_until_over(Cooldown& cooldown, double step_ms) {
  int steps = 0;
  for (; !cooldown.is_over() && steps < 100'000; ++steps) cooldown.count(step_ms);
  return steps;
}

TEST(Cooldown, NothingIsLookedAtWithoutAnAlarm) {
  Cooldown cooldown;
  cooldown.begin(/*price_ms=*/1000, /*level_ms=*/100, /*behind_ms=*/50);
  for (int step = 0; step < 10'000; ++step) cooldown.count(100);
  EXPECT_FALSE(cooldown.is_over());
  cooldown.alarm();
  EXPECT_TRUE(cooldown.is_over()) << "earned meanwhile";
}

TEST(Cooldown, EndsWhenTheLossIsThePrice) {
  Cooldown cooldown;
  cooldown.begin(1000, 100, 50);
  cooldown.alarm();
  EXPECT_EQ(steps_until_over(cooldown, 120), 50);
  cooldown.begin(1000, 100, 50);
  cooldown.alarm();
  EXPECT_EQ(steps_until_over(cooldown, 80), 2 * 50) << "faster counts too; the second search in a row costs double";
}

TEST(Cooldown, AStallIsNoSearchsWorth) {
  Cooldown cooldown;
  cooldown.begin(2000, 100, 50);
  cooldown.alarm();
  cooldown.count(100'000);
  EXPECT_FALSE(cooldown.is_over());
}

TEST(Cooldown, SearchesInARowGetDearerUntilItIsQuiet) {
  Cooldown cooldown;
  for (int search = 0; search < 4; ++search) {
    cooldown.begin(1000, 100, 50);
    cooldown.alarm();
    EXPECT_EQ(steps_until_over(cooldown, 120), 50 << search);
  }
  cooldown.begin(1'000'000, 100, 50);
  for (int step = 0; step < 2'000; ++step) cooldown.count(100);
  cooldown.begin(1000, 100, 50);
  cooldown.alarm();
  EXPECT_EQ(steps_until_over(cooldown, 120), 50);
}

TEST(Cooldown, WhatDidNotLastMakesTheNextSearchDearerButNoSearchCostsMoreThanItCan) {
  Cooldown cooldown;
  cooldown.begin(1'000'000, 100, 50);
  cooldown.dropped(500);
  EXPECT_EQ(steps_until_over(cooldown, 120), 2 * 500 / 20);
}

TEST(Cooldown, ASearchCostsLessWhereTheBaselineIsLessFarBehind) {
  const auto steps = [](double most_price_ms, double behind_ms) {
    Cooldown cooldown;
    cooldown.begin(1000, 100, 50);
    cooldown.alarm();
    cooldown.reprice(most_price_ms, behind_ms);
    cooldown.reprice(most_price_ms, behind_ms);
    return steps_until_over(cooldown, 120);
  };
  EXPECT_EQ(steps(5000, 50), 50);
  EXPECT_EQ(steps(5000, 10), 10) << "once, however often it is told";
  EXPECT_EQ(steps(5000, 500), 50) << "and never more than it was";
  EXPECT_EQ(steps(5000, -10), 50) << "no sign of a price";
  EXPECT_EQ(steps(400, 50), 20);
}

}  // namespace
}  // namespace gradtune::tuner
