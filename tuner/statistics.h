// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The few statistics behind races and confirmations: signs, which are exact over pairs of blocks for any noise, and
// Student's t if an estimate is enough. Inside a block the median counts (engine/core/median.h). It leaves open what
// is compared with what.
#pragma once

#include <span>

namespace gradtune::tuner {

struct Moments {
  double mean = 0;
  double sd = 0;  // of a sample: over n - 1; 0 for fewer than two values
};
Moments moments(std::span<const double> values);

// A lower bound of the centre of the values, too high with probability `error`, 0 < error < 0.5; minus infinity if
// there are too few values. It only assumes that each value lies as far above the centre as below with equal
// probability, given the others. The values may have different spreads and dependent noise. (Hartigan 1969: the
// means of all subsets lie below the centre as often as random signs say. The bound is above 0 if the values' sum is
// among the largest that other signs would give.)
double lower_bound(std::span<const double> values, double error);
constexpr int kMostSigned = 20;  // values

// The smallest number of values that have a bound with that error.
int fewest_signed(double error);

// Student's t for n values, n >= 2, exceeds this with probability `error`, 0 < error < 0.5.
double t_quantile(int values, double error);

// Probability that the one-sided t test of `values` differences with that error finds a mean above 0, for true mean
// and sd. It is a normal approximation of the noncentral t distribution, within 2 % for 4 values and more at 5 %.
double power(int values, double mean, double sd, double error);

}  // namespace gradtune::tuner
