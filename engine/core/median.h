// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Medians. Robust against single values that are far off. Leaves open what is done with the others.
#pragma once

#include <span>
#include <vector>

namespace gradtune::core {

// Which of the two middle values of an even number counts.
enum class Middle { mean, upper };

// Puts the values in another order and allocates nothing. Not empty.
double median_in_place(std::span<double> values, Middle middle = Middle::mean);

double median(std::vector<double> values, Middle middle = Middle::mean);

}  // namespace gradtune::core
