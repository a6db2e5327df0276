// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Two numbers for people of which one is beyond the other: with as many digits as show that.
#pragma once

#include <string>

namespace gradtune::tuner {

struct Digits {
  std::string first, second;

  bool operator==(const Digits&) const = default;
};

// Both with the same number of significant digits: three, or more where the texts would be equal although the numbers
// are not.
Digits told_apart(double first, double second);

}  // namespace gradtune::tuner
