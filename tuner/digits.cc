// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/digits.h"

#include <fmt/format.h>

#include <limits>

namespace gradtune::tuner {

Digits told_apart(double first, double second) {
  Digits digits;
  for (int most = 3; most <= std::numeric_limits<double>::max_digits10; ++most) {
    digits = {fmt::format("{:.{}g}", first, most), fmt::format("{:.{}g}", second, most)};
    if (first == second || digits.first != digits.second) break;
  }
  return digits;
}

}  // namespace gradtune::tuner
