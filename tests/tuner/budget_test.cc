// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/budget.h"

#include <gtest/gtest.h>

namespace gradtune::tuner {
namespace {

TEST(Budget, EndsAfterItsSteps) {
  Budget budget(10, 0.25);
  budget.learn_baseline(100);
  for (int step = 0; step < 9; ++step) budget.count({.step_ms = 100}, false);
  EXPECT_TRUE(budget.allows());
  EXPECT_FALSE(budget.allows(1));
  budget.count({.step_ms = 100}, false);
  EXPECT_FALSE(budget.allows());
  EXPECT_EQ(10, budget.steps());
}

TEST(Budget, CostIsWhatStepsTookLongerThanTheBaseline) {
  Budget budget(100, 0.25);
  for (double ms : {110.0, 90.0, 130.0}) budget.count({.step_ms = ms}, false);
  EXPECT_EQ(40, budget.cost_ms(100));
  EXPECT_EQ(20, budget.cost_ms(110));
}

TEST(Budget, EndsWhenAShareOfTheTimeIsLost) {
  Budget budget(1'000'000, 0.25);
  for (int step = 0; step < 10; ++step) budget.count({.step_ms = 200}, false);
  EXPECT_TRUE(budget.allows()) << "nothing is lost before the baseline is known";
  budget.learn_baseline(100);
  while (budget.allows()) budget.count({.step_ms = 200}, false);
  EXPECT_EQ(51, budget.steps()) << "each loses one baseline step, and 25 % of 200 baseline steps may be lost";
}

TEST(Budget, FasterStepsMakeUpForSlowOnes) {
  Budget budget(1'000'000, 0.25);
  budget.learn_baseline(100);
  for (int step = 0; step < 1000; ++step) budget.count({.step_ms = step % 2 == 0 ? 20.0 : 170.0}, false);
  EXPECT_TRUE(budget.allows());
}

TEST(Budget, TheBaselineMayBecomeSlower) {
  Budget budget(1'000'000, 0.25);
  budget.learn_baseline(100);
  for (int step = 0; step < 1000; ++step) {
    if (step == 10) budget.learn_baseline(200);
    budget.count({.step_ms = 200}, false);
  }
  EXPECT_TRUE(budget.allows());
}

// For example an unannounced evaluation, or a slow loader.
TEST(Budget, ASingleLongStepIsNotHeldAgainstTuning) {
  for (const bool is_early : {true, false}) {
    Budget budget(100, 0.25);
    if (!is_early) budget.learn_baseline(100);
    for (double ms : {100.0, 1e6, 100.0}) budget.count({.step_ms = ms}, false);
    budget.learn_baseline(100);
    EXPECT_TRUE(budget.allows()) << is_early;
    EXPECT_EQ(900, budget.cost_ms(100)) << "ten baseline steps at most";
    for (int step = 0; step < 9; ++step) budget.count({.step_ms = 500}, false);
    EXPECT_TRUE(budget.allows()) << 900 + 9 * 400;
    budget.count({.step_ms = 500}, false);
    budget.count({.step_ms = 500}, false);
    EXPECT_FALSE(budget.allows()) << "nor does it earn anything: " << 900 + 11 * 400;
  }
}

TEST(Budget, LongStepsInARowAre) {
  for (const bool is_early : {true, false}) {
    Budget budget(100, 0.25);
    if (!is_early) budget.learn_baseline(100);
    for (double ms : {100.0, 3000.0, 3000.0, 100.0}) budget.count({.step_ms = ms}, false);
    budget.learn_baseline(100);
    EXPECT_EQ(2 * 2900, budget.cost_ms(100));
    EXPECT_FALSE(budget.allows());
  }
}

TEST(Budget, WhatTheUserExcludedIsNotHeldAgainstTuning) {
  Budget budget(100, 0.25);
  budget.learn_baseline(100);
  budget.count({.step_ms = 1e6, .excluded = true}, /*is_ours=*/false);
  EXPECT_TRUE(budget.allows());
  EXPECT_EQ(0, budget.cost_ms(100));
  budget.count({.step_ms = 1e6, .excluded = true}, /*is_ours=*/true);
  EXPECT_FALSE(budget.allows());
}

}  // namespace
}  // namespace gradtune::tuner
