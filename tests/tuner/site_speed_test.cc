// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/site_speed.h"

#include <gtest/gtest.h>

#include <limits>

namespace gradtune::tuner {
namespace {

SiteSpeed after(double own_ms, double slowest_ms, size_t rounds = SiteSpeed::kRounds) {
  SiteSpeed speed;
  for (size_t round = 0; round < rounds; ++round) speed.learn(own_ms, slowest_ms);
  return speed;
}

TEST(SiteSpeed, MakesAsManyUpdatesAsFitIntoTheTimeOfTheSlowestRank) {
  EXPECT_EQ(after(10, 30).updates(8, 100), 24);
  EXPECT_EQ(after(10, 29).updates(8, 100), 23);  // rounded down
  EXPECT_EQ(after(30, 30).updates(8, 100), 8);
}

TEST(SiteSpeed, MakesNoFewerUpdatesThanTheSlowestRankAndAtMostTheLimit) {
  EXPECT_EQ(after(31, 30).updates(8, 100), 8);
  EXPECT_EQ(after(10, 30).updates(8, 20), 20);
  EXPECT_EQ(after(10, 30).updates(8, 8), 8);
}

TEST(SiteSpeed, IsKnownFromTheMedianOfSomeRounds) {
  EXPECT_EQ(after(10, 30, SiteSpeed::kRounds - 1).updates(8, 100), 8);
  SiteSpeed speed = after(10, 30, SiteSpeed::kRounds / 2);
  for (size_t round = 0; round < SiteSpeed::kRounds / 2; ++round) speed.learn(10, 1e6);
  speed.learn(10, 30);
  EXPECT_EQ(speed.updates(8, 100), 24);
}

TEST(SiteSpeed, IgnoresTimesThatAreNone) {
  SiteSpeed speed = after(10, 30, SiteSpeed::kRounds - 1);
  speed.learn(0, 30);
  speed.learn(10, 0);
  speed.learn(std::numeric_limits<double>::quiet_NaN(), 30);
  EXPECT_EQ(speed.updates(8, 100), 8);
  speed.learn(10, 30);
  EXPECT_EQ(speed.updates(8, 100), 24);
}

}  // namespace
}  // namespace gradtune::tuner
