// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/observation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradtune::tuner {
namespace {

using testing::ElementsAre;

Score block(int32_t slot, double ms) { return {.slot = slot, .step_ms = ms, .steps = 3}; }

TEST(Observation, OneBaselineIsSeenOnce) {
  Observation observation(1);
  EXPECT_THAT(observation.next_blocks(), ElementsAre(0));
  observation.score({block(0, 100)});
  EXPECT_TRUE(observation.is_over());
  EXPECT_EQ(0, observation.baseline());
  EXPECT_EQ(100, observation.baseline_ms());
  EXPECT_FALSE(observation.rival());
}

TEST(Observation, TwoAreSeenTwiceAndTheFasterIsTheBaseline) {
  Observation observation(2);
  EXPECT_THAT(observation.next_blocks(), ElementsAre(1, 0, 0, 1));
  observation.score({block(1, 800), block(0, 1550), block(0, 1500), block(1, 820)});
  EXPECT_TRUE(observation.is_over());
  EXPECT_EQ(1, observation.baseline());
  EXPECT_EQ(810, observation.baseline_ms());
  EXPECT_FALSE(observation.rival());
}

TEST(Observation, WhereNotAllBlocksSayTheSameTheOtherMayBeTheFasterOne) {
  Observation close(2), hit(2);
  close.score({block(1, 100), block(0, 104), block(0, 105), block(1, 101)});
  EXPECT_EQ(1, close.baseline());
  EXPECT_EQ(0, close.rival());
  hit.score({block(1, 130), block(0, 220), block(0, 100), block(1, 130)});
  EXPECT_EQ(1, hit.baseline());
  EXPECT_EQ(0, hit.rival());
}

TEST(Observation, ABlockThatCouldNotBeScoredIsRunAgain) {
  Observation observation(2);
  observation.score({{.slot = 1, .step_ms = {}, .steps = 1}, block(0, 100), block(0, 100), block(1, 150)});
  EXPECT_THAT(observation.next_blocks(), ElementsAre(1));
  observation.score({block(1, 150)});
  EXPECT_TRUE(observation.is_over());
}

TEST(Observation, ComputeTimesAreMediansOfTheStepsThatCount) {
  Observation observation(1);
  EXPECT_EQ(0, observation.compute_max_ms());
  for (double ms : {60.0, 90.0, 70.0}) observation.record({.compute_ms_max = ms, .compute_ms_min = ms - 10});
  observation.record({.compute_ms_max = 1e6, .compute_ms_min = 1e6, .finite = true, .excluded = true});
  observation.record({.compute_ms_max = 1e6, .compute_ms_min = 1e6, .finite = false});
  EXPECT_EQ(70, observation.compute_max_ms());
  EXPECT_EQ(60, observation.compute_min_ms());
}

}  // namespace
}  // namespace gradtune::tuner
