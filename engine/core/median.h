// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Medians, which are robust against single outliers. Callers decide what is done with the other values.
#pragma once

#include <span>
#include <vector>

namespace gradtune::core {

// The median of an even number of values: the mean of the two middle ones, or the upper one.
enum class Middle { mean, upper };

// Reorders the values and allocates nothing. `values` must not be empty.
double median_in_place(std::span<double> values, Middle middle = Middle::mean);

double median(std::vector<double> values, Middle middle = Middle::mean);

}  // namespace gradtune::core
