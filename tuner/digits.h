// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Prints two numbers, one of which exceeds the other, with enough digits to show that.
#pragma once

#include <string>

namespace gradtune::tuner {

struct Digits {
  std::string first, second;

  bool operator==(const Digits&) const = default;
};

// Both with the same number of significant digits: three, or more if the texts would be equal although the numbers
// are not.
Digits told_apart(double first, double second);

}  // namespace gradtune::tuner
