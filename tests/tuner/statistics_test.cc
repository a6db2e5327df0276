// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "engine/core/rng.h"

namespace gradtune::tuner {
namespace {

TEST(Statistics, MedianIsTheMiddleOrTheMeanOfTheMiddleTwo) {
  EXPECT_EQ(5, median({5}));
  EXPECT_EQ(3, median({9, 1, 3}));
  EXPECT_EQ(3.5, median({9, 1, 3, 4}));
}

TEST(Statistics, MomentsOfASample) {
  const std::vector<double> values = {2, 4, 4, 4, 5, 5, 7, 9};
  EXPECT_DOUBLE_EQ(5, moments(values).mean);
  EXPECT_DOUBLE_EQ(std::sqrt(32.0 / 7), moments(values).sd);
  EXPECT_EQ(0, moments(std::vector<double>{3}).sd);
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
