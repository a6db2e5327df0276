// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The measuring method of benchmarks of code. The compared variants take turns, in another order each time, so that
// load on a shared machine hits all of them, and ratios are taken within a round.
#pragma once

#include <functional>
#include <vector>

namespace gradtune::bench {

double quantile(std::vector<double> values, double share);

// The number of calls for one time measurement, so that the clock's cost does not matter.
int repeats_of(const std::function<void()>& call);

// Seconds of one call of each turn, as the mean of `repeats`, round after round.
std::vector<std::vector<double>> rounds_of(const std::vector<std::function<void()>>& turns, int repeats);

}  // namespace gradtune::bench
