// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/cost/line_fit.h"

#include <gtest/gtest.h>

#include "engine/core/rng.h"

namespace gradtune::policies {
namespace {

TEST(FitLine, FindsTheLineBehindNoiseAndSpikes) {
  core::Rng rng(1);
  std::vector<Point> points;
  for (int i = 0; i < 400; ++i) {
    const double x = 1000 * static_cast<double>(1 + rng.below(20));
    const double spike = rng.below(5) == 0 ? 4 : 1;
    points.push_back({x, (50 + 0.01 * x) * (1 + 0.05 * (2 * rng.uniform() - 1)) * spike});
  }
  const Line line = fit_line(points);
  EXPECT_NEAR(line.unit, 0.01, 0.001);
  EXPECT_NEAR(line.fixed, 50, 8);
}

// This happens if each bucket of each plan has its own size. (With lines through all pairs of sizes it takes
// minutes.)
TEST(FitLine, ManySizesAreFittedAsWellAsFew) {
  core::Rng rng(2);
  std::vector<Point> points;
  for (int i = 0; i < 10'000; ++i) {
    const double x = 1000 * (1 + i * 0.01) + rng.uniform();
    const double spike = rng.below(5) == 0 ? 4 : 1;
    points.push_back({x, (50 + 0.01 * x) * (1 + 0.05 * (2 * rng.uniform() - 1)) * spike});
  }
  const Line line = fit_line(points);
  EXPECT_NEAR(line.unit, 0.01, 0.0005);
  EXPECT_NEAR(line.fixed, 50, 5);
}

TEST(FitLine, NeverFallsNorBeginsBelowZero) {
  const Line falling = fit_line({{1, 10}, {2, 8}, {3, 6}});
  EXPECT_EQ(falling.unit, 0);
  const Line steep = fit_line({{10, 1}, {20, 5}, {30, 9}});
  EXPECT_EQ(steep.fixed, 0);
  EXPECT_GT(steep.unit, 0);
}

TEST(FitLine, AnExpectedFixedPartDecidesWhereThePointsCanNotTell) {
  // Large points, a little off: without an expected fixed part the line would begin at 100.
  const std::vector<Point> large = {{10'000, 1100}, {10'000, 1100}, {20'000, 2100}, {20'000, 2100}};
  EXPECT_NEAR(fit_line(large).fixed, 100, 1e-9);
  EXPECT_EQ(fit_line(large, {.expected_fixed = 5}).fixed, 5);
  std::vector<Point> small = large;
  for (int i = 0; i < 4; ++i) small.push_back({10, 101});
  EXPECT_NEAR(fit_line(small, {.expected_fixed = 5}).fixed, 100, 1);
}

TEST(FitLine, WhatIsExpectedFarOutDecidesThere) {
  // Points up to 100 that do not grow, as when a token bucket passes that much at once.
  const std::vector<Point> small = {{10, 50}, {10, 50}, {20, 50}, {20, 50}, {100, 60}};
  EXPECT_LT(fit_line(small).unit, 0.2);
  const Line line = fit_line(small, {.expected_far = Point{1000, 1000}});
  EXPECT_NEAR(line.fixed + 1000 * line.unit, 1000, 1e-9);
  EXPECT_NEAR(line.fixed + 10 * line.unit, 50, 12);
}

TEST(FitLine, RisesNoLessThanItHasTo) {
  const std::vector<Point> flat = {{10, 50}, {20, 50}, {100, 52}};
  EXPECT_LT(fit_line(flat).unit, 0.1);
  const Line line = fit_line(flat, {.least_unit = 0.2});
  EXPECT_EQ(line.unit, 0.2);
  EXPECT_NEAR(line.at(10), 50, 5);
  EXPECT_EQ(fit_line({{10, 1}}, {.least_unit = 0.2}).unit, 0.2);
  EXPECT_EQ(fit_line({{10, 4}}, {.least_unit = 0.2}).unit, 0.4);
}

TEST(FitLine, OneSizeIsTakenForProportional) {
  EXPECT_EQ(fit_line({{10, 4}, {10, 5}, {10, 90}}).unit, 0.5);
  EXPECT_EQ(fit_line({{0, 4}}).fixed, 4);
  EXPECT_EQ(fit_line({{10, 5}}, {.expected_fixed = 1}).unit, 0.4);
  EXPECT_EQ(fit_line({{10, 5}}, {.expected_fixed = 100}).fixed, 2.5);
  EXPECT_EQ(fit_line({}).unit, 0);
}

}  // namespace
}  // namespace gradtune::policies
