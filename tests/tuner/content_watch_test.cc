// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/content_watch.h"

#include <gtest/gtest.h>

#include "engine/core/rng.h"

namespace gradtune::tuner {
namespace {

// Steps until a change is found; 0: none within that many.
int told_after(ContentWatch& watch, double of_one, double of_all, double spread, core::Rng& rng, int steps) {
  for (int step = 1; step <= steps; ++step) {
    const double factor = 1 + spread * rng.normal();
    if (watch.record({of_one * factor, of_all * factor})) return step;
  }
  return 0;
}

TEST(ContentWatch, IsSilentWhileSharesVaryAsTheyDid) {
  core::Rng rng(1);
  for (const double spread : {0.0, 0.1, 0.5}) {
    ContentWatch watch;
    EXPECT_EQ(told_after(watch, 0.01, 0.03, spread, rng, 5000), 0) << spread;
  }
}

TEST(ContentWatch, TellsOfTheNewLevelInEitherDirection) {
  core::Rng rng(2);
  for (const double factor : {0.5, 2.0}) {
    ContentWatch watch;
    EXPECT_EQ(told_after(watch, 0.01, 0.03, 0.1, rng, 100), 0);
    int steps = 0;
    for (std::optional<RowShares> told; !told && steps < 1000;) {
      ++steps;
      told = watch.record({0.01 * factor, 0.03 * factor});
      if (told) {
        EXPECT_NEAR(told->of_one, 0.01 * factor, 1e-6);
        EXPECT_NEAR(told->of_all, 0.03 * factor, 1e-6);
      }
    }
    EXPECT_LE(steps, 60);
    EXPECT_EQ(told_after(watch, 0.01 * factor, 0.03 * factor, 0.1, rng, 1000), 0) << "that is the level now";
  }
}

TEST(ContentWatch, SeesThatRanksOverlapLessAndThatNothingIsThereAnyMore) {
  core::Rng rng(3);
  ContentWatch overlap, none;
  for (ContentWatch* watch : {&overlap, &none}) EXPECT_EQ(told_after(*watch, 0.01, 0.02, 0.05, rng, 100), 0);
  EXPECT_GT(told_after(overlap, 0.01, 0.03, 0.05, rng, 100), 0);
  EXPECT_GT(told_after(none, 0, 0, 0, rng, 100), 0);
}

TEST(ContentWatch, AJobThatSwingsIsToldOfEverLessOften) {
  core::Rng rng(4);
  ContentWatch watch;
  int told = 0;
  for (int step = 0; step < 20'000; ++step) {
    const double share = step / 100 % 2 == 0 ? 0.01 : 0.1;
    if (watch.record({share, share})) ++told;
  }
  EXPECT_LE(told, 6);
}

}  // namespace
}  // namespace gradtune::tuner
