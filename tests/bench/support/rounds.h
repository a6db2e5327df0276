// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// How benchmarks of code measure: what is compared takes turns, in another order each time, so that what a shared
// machine does meanwhile meets all of it, and ratios are made within a round.
#pragma once

#include <functional>
#include <vector>

namespace gradtune::bench {

double quantile(std::vector<double> values, double share);

// How often one time should repeat that call, so that the clock does not count.
int repeats_of(const std::function<void()>& call);

// Seconds of one call of each turn, as the mean of `repeats`, round after round.
std::vector<std::vector<double>> rounds_of(const std::vector<std::function<void()>>& turns, int repeats);

}  // namespace gradtune::bench
