// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/core/gradient_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "engine/core/rng.h"

namespace gradtune::core {
namespace {

GradientTable example() {
  return {.tensors = {{.name = "head.bias", .shape = {10}, .numel = 10, .dtype = DType::f32, .ready_us = 0},
                      {.name = "head.weight", .shape = {10, 20}, .numel = 200, .dtype = DType::bf16, .ready_us = 5},
                      {.name = "scale", .shape = {}, .numel = 1, .dtype = DType::f16, .ready_us = 9}}};
}

TEST(GradientTable, CountsElementsAndBytes) {
  EXPECT_EQ(example().numel(), 211);
  EXPECT_EQ(example().bytes(), 40 + 400 + 2);
  EXPECT_EQ(GradientTable{}.numel(), 0);
  EXPECT_EQ(GradientTable{}.bytes(), 0);
}

TEST(GradientTable, FingerprintDoesNotDependOnOrderOrTimes) {
  GradientTable table = example();
  std::reverse(table.tensors.begin(), table.tensors.end());
  table.tensors[1].ready_us = 77;
  EXPECT_EQ(table.fingerprint(), example().fingerprint());
}

TEST(GradientTable, FingerprintDependsOnNamesShapesAndDtypes) {
  std::set<uint64_t> prints = {example().fingerprint(), GradientTable{}.fingerprint()};
  const auto expect_new = [&](auto change) {
    GradientTable table = example();
    change(table.tensors);
    EXPECT_TRUE(prints.insert(table.fingerprint()).second);
  };
  expect_new([](auto& tensors) { tensors[0].name = "head.bia"; });
  expect_new([](auto& tensors) { tensors[1].shape = {20, 10}; });
  expect_new([](auto& tensors) { tensors[1].shape = {200}; });
  expect_new([](auto& tensors) { tensors[2].dtype = DType::f32; });
  expect_new([](auto& tensors) { tensors.pop_back(); });
}

GradientTable of_sizes(const std::vector<int64_t>& sizes) {
  GradientTable table;
  for (const int64_t numel : sizes)
    table.tensors.push_back({.name = std::to_string(numel), .shape = {numel}, .numel = numel});
  return table;
}

TEST(GradientTable, SmallTensorsAreTheEndThatHoldsHalfAPercent) {
  EXPECT_EQ(of_sizes({}).first_small(), 0u);
  EXPECT_EQ(of_sizes({5, 5}).first_small(), 2u);
  EXPECT_EQ(of_sizes({10, 9950, 30, 10}).first_small(), 2u);
  EXPECT_EQ(of_sizes({10, 9940, 40, 10}).first_small(), 2u) << "just half a percent";
  EXPECT_EQ(of_sizes({10, 9930, 50, 10}).first_small(), 3u);
  EXPECT_EQ(of_sizes({10000, 0, 0}).first_small(), 1u);
}

TEST(GradientTable, SmallTensorsAreLaidLast) {
  const GradientTable table = of_sizes({10, 5000, 20, 4900, 30, 15, 60});
  EXPECT_EQ(small_last(table, {0, 1, 2, 3, 4, 5, 6}), (std::vector<int32_t>{1, 3, 4, 6, 0, 2, 5}));
  EXPECT_EQ(small_last(table, {6, 5, 4, 3, 2, 1, 0}), (std::vector<int32_t>{6, 4, 3, 1, 5, 2, 0}));
  EXPECT_EQ(small_last(of_sizes({7, 7, 7}), {2, 0, 1}), (std::vector<int32_t>{2, 0, 1})) << "none is small";
  EXPECT_TRUE(small_last({}, {}).empty());
}

// first_small finds the tensors that small_last puts at the end.
TEST(GradientTable, TheTwoAgree) {
  Rng rng(3);
  for (int round = 0; round < 500; ++round) {
    std::vector<int64_t> sizes;
    std::vector<int32_t> order;
    const auto count = static_cast<int>(rng.below(40));
    for (int i = 0; i < count; ++i) {
      sizes.push_back(static_cast<int64_t>(rng.below(rng.below(2) == 0 ? 50 : 20'000)));
      order.push_back(i);
    }
    const GradientTable table = of_sizes(sizes);
    rng.shuffle(order);
    order = small_last(table, order);
    GradientTable laid;
    for (const int32_t position : order) laid.tensors.push_back(table.tensors[static_cast<size_t>(position)]);
    const size_t first = laid.first_small();
    int64_t smallest_large = INT64_MAX, largest_small = 0, sum = 0;
    for (size_t t = 0; t < laid.tensors.size(); ++t) {
      const int64_t numel = laid.tensors[t].numel;
      if (t < first) {
        smallest_large = std::min(smallest_large, numel);
      } else {
        largest_small = std::max(largest_small, numel);
        sum += numel;
      }
    }
    EXPECT_LE(largest_small, smallest_large) << "round " << round;
    EXPECT_LE(static_cast<double>(sum), kSmallShare * static_cast<double>(laid.numel()));
    if (first > 0) {
      EXPECT_GT(static_cast<double>(sum + smallest_large), kSmallShare * static_cast<double>(laid.numel()));
    }
  }
}

TEST(DType, NamesAndWidths) {
  EXPECT_EQ(to_string(DType::f32), "float32");
  EXPECT_EQ(to_string(DType::bf16), "bfloat16");
  EXPECT_EQ(to_string(DType::f16), "float16");
  EXPECT_EQ(bytes_per_element(DType::f32), 4);
  EXPECT_EQ(bytes_per_element(DType::bf16), 2);
  EXPECT_EQ(bytes_per_element(DType::f16), 2);
}

TEST(Content, OfASumLiesBetweenOneAndAll) {
  const Content content{.row = 64, .of_one = 0.01, .of_all = 0.04};
  EXPECT_DOUBLE_EQ(content.at(1, 8), 0.01);
  EXPECT_DOUBLE_EQ(content.at(8, 8), 0.04);
  EXPECT_NEAR(content.at(2, 4), 0.02, 1e-12) << "half way in the logarithm";
  EXPECT_GT(content.at(4, 8), content.at(2, 8));
  EXPECT_DOUBLE_EQ(Content().at(3, 8), 1) << "nothing is known of it";
  EXPECT_DOUBLE_EQ((Content{.of_one = 0.5, .of_all = 1}.at(16, 8)), 1) << "no more than all";
}

}  // namespace
}  // namespace gradtune::core
