// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/statistics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "engine/core/result.h"

namespace gradtune::tuner {
namespace {

// Quantiles .95 and .975 for 1, 2, ... degrees of freedom.
constexpr std::array kOneSided = {6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782,
                                  1.771, 1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725, 1.721, 1.717, 1.714};
constexpr std::array kTwoSided = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179,
                                  2.160,  2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069};

double quantile(std::span<const double> table, int values) {
  core::check(values >= 2, "a spread takes two values");
  return table[std::min(table.size(), static_cast<size_t>(values) - 1) - 1];  // beyond the table: a little too wide
}

}  // namespace

double median(std::vector<double> values) {
  core::check(!values.empty(), "a median takes a value");
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

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

double t_one_sided(int values) { return quantile(kOneSided, values); }
double t_two_sided(int values) { return quantile(kTwoSided, values); }

double power(int values, double mean, double sd) {
  const double shift = mean * std::sqrt(static_cast<double>(values)) / std::max(sd, std::numeric_limits<double>::min());
  const double t = t_one_sided(values), freedom = values - 1;
  const double z = (shift - t * (1 - 1 / (4 * freedom))) / std::sqrt(1 + t * t / (2 * freedom));
  return 0.5 * std::erfc(-z / std::sqrt(2.0));
}

}  // namespace gradtune::tuner
