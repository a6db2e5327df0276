// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/statistics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>
#include <vector>

#include "engine/core/result.h"

namespace gradtune::tuner {
namespace {

// The probability that |t| is larger: finite sums for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 4).
double outside(double t, int freedom) {
  const double angle = std::atan(t / std::sqrt(freedom)), cosine = std::cos(angle);
  const bool is_odd = freedom % 2 == 1;
  double term = is_odd ? cosine : 1, sum = freedom == 1 ? 0 : term;
  for (int k = is_odd ? 3 : 2; k < freedom; k += 2) {
    term *= cosine * cosine * (k - 1) / k;
    sum += term;
  }
  sum *= std::sin(angle);
  return 1 - (is_odd ? 2 / std::numbers::pi * (angle + sum) : sum);
}

}  // namespace

Moments moments(std::span<const double> values) {
  Moments moments;
  const auto n = static_cast<double>(values.size());
  for (double value : values) moments.mean += value / n;
  if (values.size() < 2) return moments;
  double squares = 0;
  for (double value : values) squares += (value - moments.mean) * (value - moments.mean);
  moments.sd = std::sqrt(squares / (n - 1));
  return moments;
}

double lower_bound(std::span<const double> values, double error) {
  const auto n = static_cast<int>(values.size());
  core::check(n <= kMostSigned, "subsets of more values are too many");
  const uint32_t subsets = uint32_t{1} << n;
  const auto below = static_cast<ptrdiff_t>(error * subsets);
  if (below < 1) return -std::numeric_limits<double>::infinity();
  // Derives each subset's sum from the one without its lowest value.
  std::vector<double> sums(subsets, 0.0);
  std::vector<double> means;
  means.reserve(subsets - 1);
  for (uint32_t subset = 1; subset < subsets; ++subset) {
    sums[subset] = sums[subset & (subset - 1)] + values[static_cast<size_t>(std::countr_zero(subset))];
    means.push_back(sums[subset] / std::popcount(subset));
  }
  const auto bound = means.begin() + below - 1;
  std::nth_element(means.begin(), bound, means.end());
  return *bound;
}

int fewest_signed(double error) {
  core::check(error > 0 && error < 0.5, "a bound takes an error below one half");
  return static_cast<int>(std::ceil(-std::log2(error)));
}

double t_quantile(int values, double error) {
  core::check(values >= 2 && error > 0 && error < 0.5, "a spread takes two values, a bound an error below one half");
  double low = 0, high = 1;
  while (outside(high, values - 1) > 2 * error) high *= 2;
  while (high - low > 1e-9 * high) {
    const double middle = (low + high) / 2;
    (outside(middle, values - 1) > 2 * error ? low : high) = middle;
  }
  return high;
}

double power(int values, double mean, double sd, double error) {
  const double shift = mean * std::sqrt(static_cast<double>(values)) / std::max(sd, std::numeric_limits<double>::min());
  const double t = t_quantile(values, error), freedom = values - 1;
  const double z = (shift - t * (1 - 1 / (4 * freedom))) / std::sqrt(1 + t * t / (2 * freedom));
  return 0.5 * std::erfc(-z / std::sqrt(2.0));
}

}  // namespace gradtune::tuner
