// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/site_speed.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace gradtune::tuner {
namespace {

using Told = SiteSpeed::Told;

// This rank and another one tell these times of an update.
void learn(SiteSpeed& speed, double own_ms, double other_ms) {
  const Told own{.updates = 1, .update_ms = own_ms};
  const std::vector<uint64_t> all = {SiteSpeed::pack(own), SiteSpeed::pack({.updates = 1, .update_ms = other_ms})};
  speed.learn(own, all);
}

SiteSpeed after(double own_ms, double slowest_ms, size_t rounds = SiteSpeed::kRounds) {
  SiteSpeed speed;
  for (size_t round = 0; round < rounds; ++round) learn(speed, own_ms, slowest_ms);
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
  for (size_t round = 0; round < SiteSpeed::kRounds / 2; ++round) learn(speed, 10, 1e6);
  learn(speed, 10, 30);
  EXPECT_EQ(speed.updates(8, 100), 24);
}

TEST(SiteSpeed, FollowsARankThatIsSlowForATime) {
  SiteSpeed speed = after(10, 30);
  for (size_t round = 0; round < SiteSpeed::kRounds; ++round) learn(speed, 10, 10);
  EXPECT_EQ(speed.updates(8, 100), 8);
}

TEST(SiteSpeed, IgnoresTimesThatAreNone) {
  SiteSpeed speed = after(10, 30, SiteSpeed::kRounds - 1);
  learn(speed, 0, 30);
  learn(speed, 10, 0);
  learn(speed, std::numeric_limits<double>::quiet_NaN(), 30);
  EXPECT_EQ(speed.updates(8, 100), 8);
  learn(speed, 10, 30);
  EXPECT_EQ(speed.updates(8, 100), 24);
}

TEST(SiteSpeed, WeighsChangesWithTheNumbersOfUpdates) {
  const auto weight = [](const std::vector<int64_t>& updates) {
    std::vector<uint64_t> all;
    for (const int64_t each : updates) all.push_back(SiteSpeed::pack({.updates = each, .update_ms = 1e9}));
    return SiteSpeed::weight({.updates = updates[0], .update_ms = 1e9}, all);
  };
  EXPECT_EQ(weight({3, 1}), 1.5);
  EXPECT_EQ(weight({1, 3}), 0.5);
  EXPECT_EQ(weight({0, 5, 5}), 0);
  EXPECT_EQ(weight({0, 0}), 1);
  EXPECT_EQ(weight({1'000'000, 1'000'000, 1'000'000}), 1);
}

}  // namespace
}  // namespace gradtune::tuner
