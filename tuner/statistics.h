// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The few statistics that racing and confirming stand on: robust inside a block (median), Student's t over blocks.
// Leaves open what is compared with what.
#pragma once

#include <span>
#include <vector>

namespace gradtune::tuner {

// The mean of the two middle values of an even number. Not empty.
double median(std::vector<double> values);

struct Moments {
  double mean = 0;
  double sd = 0;  // of a sample: over n - 1; 0 for fewer than two values
};
Moments moments(std::span<const double> values);

// What Student's t for n values, n >= 2, exceeds with that probability, 0 < error < 0.5.
double t_quantile(int values, double error);

// Probability that the one-sided t test of `values` differences with that error finds a mean above 0, for true mean and
// sd (normal approximation of the noncentral t distribution; within 2 % for 4 values and more at 5 %).
double power(int values, double mean, double sd, double error);

}  // namespace gradtune::tuner
