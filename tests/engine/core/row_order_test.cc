// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/core/row_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "engine/core/rng.h"

namespace gradtune::core {
namespace {

TEST(RowOrder, IsAPermutationAndLeadsBack) {
  for (int64_t rows : {1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 1000, 4096, 4097, 100'003}) {
    const RowOrder order(rows);
    std::vector<bool> seen(static_cast<size_t>(rows));
    for (int64_t row = 0; row < rows; ++row) {
      const uint32_t place = order.place_of(row);
      ASSERT_LT(place, rows);
      EXPECT_FALSE(seen[place]) << rows;
      seen[place] = true;
      EXPECT_EQ(order.row_at(place), row) << rows;
    }
  }
}

TEST(RowOrder, ServesAsManyRowsAs32BitsCount) {
  for (int64_t rows : {(int64_t{1} << 31) + 11, RowOrder::kMostRows - 1, RowOrder::kMostRows}) {
    const RowOrder order(rows);
    for (int64_t row : {int64_t{0}, int64_t{1}, rows / 3, rows - 2, rows - 1}) {
      EXPECT_EQ(order.row_at(order.place_of(row)), row);
    }
  }
  EXPECT_THROW(RowOrder(RowOrder::kMostRows + 1), ProgramError);
  EXPECT_THROW(RowOrder(0), ProgramError);
}

// The largest part relative to an equal share.
double imbalance(const RowOrder& order, const std::set<int64_t>& used, int parts) {
  const int64_t length = (order.rows() + parts - 1) / parts;
  std::vector<int64_t> loads(static_cast<size_t>(parts));
  for (const int64_t row : used) ++loads[static_cast<size_t>(order.place_of(row) / length)];
  return static_cast<double>(std::ranges::max(loads)) * parts / static_cast<double>(used.size());
}

// 1 + O(sqrt(n log n / used)) with probability 1 - 1/n (Zen, theorem 2); three times the root holds in this test.
double bound(size_t used, int parts) {
  return 1 + 3 * std::sqrt(parts * std::log(std::max(parts, 2)) / static_cast<double>(used));
}

TEST(RowOrder, PartsAreBalancedWhateverRowsAreUsed) {
  constexpr int64_t kRows = 400'000;
  const RowOrder order(kRows);
  Rng rng(7);
  std::set<int64_t> uniform, zipf, sorted, clustered, strided;
  for (int i = 0; i < 10'000; ++i) {
    uniform.insert(static_cast<int64_t>(rng.below(kRows)));
    zipf.insert(static_cast<int64_t>(std::pow(static_cast<double>(kRows), rng.uniform())) - 1);
    sorted.insert(i);
    clustered.insert(i / 100 * 4000 + i % 100);
    strided.insert(int64_t{i} * 32);
  }
  for (const std::set<int64_t>* used : {&uniform, &zipf, &sorted, &clustered, &strided}) {
    for (const int parts : {2, 3, 8, 16, 64}) {
      EXPECT_LT(imbalance(order, *used, parts), bound(used->size(), parts)) << parts;
    }
  }
  // Without it, sorted ids are all in the first of 8 slices.
  EXPECT_LT(imbalance(order, sorted, 8), 1.3);
}

}  // namespace
}  // namespace gradtune::core
