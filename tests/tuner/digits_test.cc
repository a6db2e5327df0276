// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/digits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace gradtune::tuner {
namespace {

TEST(Digits, ThreeAreEnoughForNumbersThatDifferInThem) {
  EXPECT_EQ(told_apart(0.75, 0.5), (Digits{"0.75", "0.5"}));
  EXPECT_EQ(told_apart(1234, 1.0 / 3), (Digits{"1.23e+03", "0.333"}));
}

TEST(Digits, NumbersThatAreCloseGetAsManyAsShowIt) {
  EXPECT_EQ(told_apart(0.35921, 0.35887), (Digits{"0.3592", "0.3589"}));
  EXPECT_EQ(told_apart(0.7591, 0.75904), (Digits{"0.7591", "0.759"}));
}

TEST(Digits, NeighboursDifferAndEqualNumbersDoNot) {
  const double next = std::nextafter(0.359, 1);
  const Digits digits = told_apart(0.359, next);
  EXPECT_NE(digits.first, digits.second);
  EXPECT_EQ(told_apart(0.359, 0.359), (Digits{"0.359", "0.359"}));
  EXPECT_EQ(told_apart(std::numeric_limits<double>::infinity(), 2), (Digits{"inf", "2"}));
}

}  // namespace
}  // namespace gradtune::tuner
