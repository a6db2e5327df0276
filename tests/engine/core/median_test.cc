// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/core/median.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/core/result.h"
#include "engine/core/rng.h"

namespace gradtune::core {
namespace {

TEST(Median, OfAnEvenNumberIsTheMeanOfTheMiddleOnesOrTheUpperOne) {
  EXPECT_EQ(5, median({5}));
  EXPECT_EQ(3, median({9, 1, 3}));
  EXPECT_EQ(3.5, median({9, 1, 3, 4}));
  EXPECT_EQ(4, median({9, 1, 3, 4}, Middle::upper));
  EXPECT_EQ(3, median({9, 1, 3}, Middle::upper));
  EXPECT_THROW(median({}), ProgramError);
}

TEST(Median, IsWhatSortingFinds) {
  Rng rng(1);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<double> values(1 + rng.below(9));
    for (double& value : values) value = static_cast<double>(rng.below(5)) + 0.1 * rng.uniform();
    std::vector<double> sorted = values;
    std::sort(sorted.begin(), sorted.end());
    const size_t n = sorted.size();
    EXPECT_EQ(median(values), (sorted[(n - 1) / 2] + sorted[n / 2]) / 2);
    EXPECT_EQ(median(values, Middle::upper), sorted[n / 2]);
  }
}

}  // namespace
}  // namespace gradtune::core
