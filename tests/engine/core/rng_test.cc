// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/core/rng.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

namespace gradtune::core {
namespace {

// From the authors' splitmix64.c with seed 1234567.
TEST(Rng, IsSplitmix64) {
  Rng rng(1234567);
  for (uint64_t expected : {6457827717110365317ULL, 3203168211198807973ULL, 9817491932198370423ULL,
                            4593380528125082431ULL, 16408922859458223821ULL}) {
    EXPECT_EQ(rng.next(), expected);
  }
}

TEST(Rng, SameSeedSameNumbers) {
  Rng a(7), b(7), c(8);
  bool differs = false;
  for (int i = 0; i < 100; ++i) {
    const uint64_t value = a.next();
    EXPECT_EQ(value, b.next());
    differs |= value != c.next();
  }
  EXPECT_TRUE(differs);
}

TEST(Rng, BelowCoversItsRangeEvenly) {
  Rng rng(3);
  std::vector<int> counts(10);
  for (int i = 0; i < 100000; ++i) ++counts.at(rng.below(10));
  for (int count : counts) EXPECT_NEAR(count, 10000, 500);  // 5 sigma
  for (int i = 0; i < 100; ++i) EXPECT_EQ(rng.below(1), 0U);
}

TEST(Rng, UniformAndNormalHaveTheirMoments) {
  constexpr int kDraws = 200000;
  Rng rng(4);
  double uniform = 0, normal = 0, square = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double u = rng.uniform(), z = rng.normal();
    EXPECT_TRUE(u >= 0 && u < 1 && std::abs(z) <= 6);
    uniform += u;
    normal += z;
    square += z * z;
  }
  EXPECT_NEAR(uniform / kDraws, 0.5, 0.005);
  EXPECT_NEAR(normal / kDraws, 0, 0.015);
  EXPECT_NEAR(square / kDraws, 1, 0.02);
}

TEST(Rng, ForksAreIndependentOfDrawsInOtherForks) {
  const Rng root(5);
  EXPECT_EQ(root.fork("links").next(), root.fork("links").next());
  std::set<uint64_t> firsts = {root.fork("links").next(), root.fork("clock").next(), root.fork("").next(),
                               Rng(6).fork("links").next(), Rng(root).next()};
  EXPECT_EQ(firsts.size(), 5U);
}

TEST(Rng, ShufflePermutesAndReachesEveryOrder) {
  Rng rng(9);
  std::set<std::vector<int>> orders;
  for (int i = 0; i < 1000; ++i) {
    std::vector<int> items = {1, 2, 3, 4};
    rng.shuffle(items);
    orders.insert(items);
    std::sort(items.begin(), items.end());
    EXPECT_EQ(items, (std::vector<int>{1, 2, 3, 4}));
  }
  EXPECT_EQ(orders.size(), 24U);
}

}  // namespace
}  // namespace gradtune::core
