// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/core/rng.h"

namespace gradtune::tuner {
namespace {

TEST(Statistics, MomentsOfASample) {
  const std::vector<double> values = {2, 4, 4, 4, 5, 5, 7, 9};
  EXPECT_DOUBLE_EQ(5, moments(values).mean);
  EXPECT_DOUBLE_EQ(std::sqrt(32.0 / 7), moments(values).sd);
  EXPECT_EQ(0, moments(std::vector<double>{3}).sd);
}

// Counts if the sum is among the largest of all that other signs would give.
bool is_proven(const std::vector<double>& values, double error) {
  const auto sum_with = [&](size_t signs) {
    double sum = 0;
    for (size_t i = 0; i < values.size(); ++i) sum += (signs >> i & 1) != 0 ? -values[i] : values[i];
    return sum;
  };
  const size_t all = size_t{1} << values.size();
  size_t as_large = 0;
  for (size_t signs = 0; signs < all; ++signs) as_large += sum_with(signs) >= sum_with(0) - 1e-9 ? 1 : 0;
  return static_cast<double>(as_large) <= error * static_cast<double>(all);
}

TEST(Statistics, ALowerBoundIsAboveZeroWhereSignsProveIt) {
  core::Rng rng(3);
  int proven = 0;
  for (int run = 0; run < 3000; ++run) {
    std::vector<double> values;
    for (uint64_t i = 0; i < 1 + rng.below(10); ++i) {
      values.push_back(0.5 + rng.normal() * (rng.uniform() < 0.2 ? 10 : 1));
    }
    for (double error : {0.05, 0.025, 0.005}) {
      EXPECT_EQ(is_proven(values, error), lower_bound(values, error) > 0);
      proven += is_proven(values, error) ? 1 : 0;
    }
  }
  EXPECT_GT(proven, 100);
}

TEST(Statistics, ALowerBoundMovesWithTheValues) {
  const std::vector<double> values = {1, 5, 3, 9, 2, 4};
  std::vector<double> moved;
  for (double value : values) moved.push_back(value + 7);
  EXPECT_EQ(1, lower_bound(values, 1.0 / 64));
  EXPECT_EQ(1.5, lower_bound(values, 2.0 / 64)) << "of 1 and 2";
  EXPECT_DOUBLE_EQ(lower_bound(values, 0.1) + 7, lower_bound(moved, 0.1));
}

TEST(Statistics, FewerValuesHaveNoBound) {
  for (double error : {0.3, 0.05, 0.04, 0.025, 0.01, 1e-3}) {
    const auto fewest = static_cast<size_t>(fewest_signed(error));
    EXPECT_EQ(1, lower_bound(std::vector<double>(fewest, 1), error)) << error;
    EXPECT_TRUE(std::isinf(lower_bound(std::vector<double>(fewest - 1, 1), error))) << error;
  }
  EXPECT_EQ(5, fewest_signed(1.0 / 32));
}

// A few values, or none, are scattered a hundred times as far, always equally far. This is the worst case for
// Student's t, which is wrong in up to an eighth of all cases.
TEST(Statistics, ALowerBoundIsTooHighAsSeldomAsItSaysWhateverScattersValues) {
  core::Rng rng(4);
  const int kRuns = 1500;
  for (int values : {6, 8, 12}) {
    for (int far = 0; far <= values; ++far) {
      int too_high = 0;
      for (int run = 0; run < kRuns; ++run) {
        std::vector<double> sample;
        for (int i = 0; i < values; ++i) {
          sample.push_back(i < far ? (rng.below(2) == 0 ? 1 : -1) * (1 + 1e-6 * rng.normal()) : 0.01 * rng.normal());
        }
        too_high += lower_bound(sample, 0.04) > 0 ? 1 : 0;
      }
      EXPECT_LE(too_high, kRuns * (0.04 + 3 * std::sqrt(0.04 / kRuns))) << far << " of " << values << " far";
    }
  }
}

// Student's t by numerical integration of its density.
double t_below(double t, int freedom) {
  const double n = freedom;
  const double scale = std::exp(std::lgamma((n + 1) / 2) - std::lgamma(n / 2)) / std::sqrt(n * M_PI);
  const int kParts = 20'000;
  double area = 0;
  for (int i = 0; i < kParts; ++i) {
    const double x = t * (i + 0.5) / kParts;
    area += scale * std::pow(1 + x * x / n, -(n + 1) / 2) * t / kParts;
  }
  return 0.5 + area;
}

TEST(Statistics, QuantilesAreStudents) {
  for (int values = 2; values <= 24; ++values) {
    for (double error : {0.3, 0.05, 0.04, 0.025, 0.01, 1e-4}) {
      const double t = t_quantile(values, error);
      if (t > 1000) continue;  // too far out for the integration
      EXPECT_NEAR(error, 1 - t_below(t, values - 1), 1e-3 * error + 2e-7) << values << " values, error " << error;
    }
  }
}

TEST(Statistics, PowerIsWhatTheTestFinds) {
  core::Rng rng(5);
  const int kRuns = 4000;
  for (int values : {4, 6, 8, 12}) {
    for (double mean : {0.0, 0.5, 1.0, 1.5}) {
      const double t = t_quantile(values, 0.05);
      int found = 0;
      for (int run = 0; run < kRuns; ++run) {
        std::vector<double> sample;
        for (int i = 0; i < values; ++i) sample.push_back(mean + rng.normal());
        const Moments m = moments(sample);
        if (m.mean > t * m.sd / std::sqrt(values)) ++found;
      }
      EXPECT_NEAR(static_cast<double>(found) / kRuns, power(values, mean, 1, 0.05), 0.045)
          << values << " values, mean " << mean;
    }
  }
}

TEST(Statistics, WithoutNoiseAnythingIsFound) {
  EXPECT_NEAR(1, power(4, 1e-6, 0, 0.05), 1e-12);
  EXPECT_LT(power(4, 0, 0, 0.05), 0.1);
}

}  // namespace
}  // namespace gradtune::tuner
