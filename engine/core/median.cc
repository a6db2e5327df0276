// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/core/median.h"

#include <algorithm>
#include <cstddef>

#include "engine/core/result.h"

namespace gradtune::core {

double median_in_place(std::span<double> values, Middle middle) {
  check(!values.empty(), "a median takes a value");
  const auto upper = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), upper, values.end());
  if (values.size() % 2 == 1 || middle == Middle::upper) return *upper;
  return (*std::max_element(values.begin(), upper) + *upper) / 2;
}

double median(std::vector<double> values, Middle middle) { return median_in_place(values, middle); }

}  // namespace gradtune::core
