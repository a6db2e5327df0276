// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The few statistics that races and confirmations stand on: exact over pairs of blocks whatever the noise is (signs),
// Student's t where an estimate is enough. Inside a block the median counts (engine/core/median.h). Leaves open what is
// compared with what.
#pragma once

#include <span>

namespace gradtune::tuner {

struct Moments {
  double mean = 0;
  double sd = 0;  // of a sample: over n - 1; 0 for fewer than two values
};
Moments moments(std::span<const double> values);

// A bound below what the values are scattered around, with that probability of being too high, 0 < error < 0.5; minus
// infinity where there are too few values for it. Assumes only that each value is as likely to lie so far above the
// centre as so far below, whatever the others are: neither that they are scattered alike, nor that what scatters them is
// independent. (Hartigan 1969: of the means of all subsets as many lie below the centre as random signs say. The bound is
// above 0 where the values' sum is among the largest that other signs would give it.)
double lower_bound(std::span<const double> values, double error);
constexpr int kMostSigned = 20;  // values

// The smallest number of values that have a bound with that error.
int fewest_signed(double error);

// What Student's t for n values, n >= 2, exceeds with that probability, 0 < error < 0.5.
double t_quantile(int values, double error);

// Probability that the one-sided t test of `values` differences with that error finds a mean above 0, for true mean and
// sd (normal approximation of the noncentral t distribution; within 2 % for 4 values and more at 5 %).
double power(int values, double mean, double sd, double error);

}  // namespace gradtune::tuner
