// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/space/partition.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/core/rng.h"
#include "tests/policies/fusion_model.h"
#include "tests/policies/jobs.h"

namespace gradtune::policies {
namespace {

using core::DType;
using core::Slice;
using testing::make_table;
using testing::reference_table;
using testing::tensor;

// Must hold for every table: the partitions are valid, each has one bucket more, and every old border is kept.
void expect_nested(const core::GradientTable& table, const std::vector<Partition>& partitions) {
  const auto borders = [](const Partition& partition) {
    std::vector<std::pair<int32_t, int64_t>> all;
    for (const auto& bucket : partition)
      all.push_back({bucket.back().tensor, bucket.back().offset + bucket.back().length});
    std::sort(all.begin(), all.end());
    return all;
  };
  for (size_t p = 0; p < partitions.size(); ++p) {
    const core::Status status = core::validate(core::uniform(partitions[p], core::plain_all_reduce(), 1), table);
    EXPECT_TRUE(status.ok()) << status.error().message;
    if (p == 0) continue;
    EXPECT_EQ(partitions[p].size(), partitions[p - 1].size() + 1);
    const auto fine = borders(partitions[p]), coarse = borders(partitions[p - 1]);
    EXPECT_TRUE(std::includes(fine.begin(), fine.end(), coarse.begin(), coarse.end()));
  }
}

TEST(Partition, OfTheReferenceJobCutsFirstBehindTheLargestTensor) {
  const core::GradientTable table = reference_table();
  const auto partitions = nested_partitions(table, 8);
  ASSERT_EQ(partitions.size(), 8u);
  expect_nested(table, partitions);
  EXPECT_EQ(table.tensors[static_cast<size_t>(partitions[1][0].back().tensor)].name, "fc1.weight");
  EXPECT_EQ(partitions[1][1].size(), 4u) << "the convolutions, ready last, are the last bucket";
  // Then behind the next large one that is ready early, then inside the largest.
  EXPECT_EQ(table.tensors[static_cast<size_t>(partitions[2][0].back().tensor)].name, "fc2.weight");
  EXPECT_GT(partitions[3][2].front().offset, 0);
}

TEST(Partition, HalvesBytesWhereReadyTimesAreNotKnown) {
  const auto table =
      make_table({tensor("a", 1 << 20), tensor("b", 1 << 20), tensor("c", 1 << 20), tensor("d", 1 << 20)});
  const auto partitions = nested_partitions(table, 8);
  ASSERT_EQ(partitions.size(), 8u);
  EXPECT_EQ(partitions[1][0].size(), 2u);
  EXPECT_EQ(partitions[3].size(), 4u);
  for (const auto& bucket : partitions[3]) EXPECT_EQ(bucket.size(), 1u);
  for (const auto& bucket : partitions[7]) EXPECT_EQ(bucket[0].length, 1 << 19);
}

TEST(Partition, OneTensorIsCutInside) {
  const auto table = make_table({tensor("only", 8 << 20)});
  const auto partitions = nested_partitions(table, 4);
  ASSERT_EQ(partitions.size(), 4u);
  expect_nested(table, partitions);
  for (const auto& bucket : partitions[3]) EXPECT_EQ(bucket, (std::vector<Slice>{{0, bucket[0].offset, 2 << 20}}));
}

TEST(Partition, SmallTensorsAreNotCutInside) {
  EXPECT_EQ(nested_partitions(make_table({tensor("a", 100), tensor("b", 1, 5)}), 32).size(), 2u);
  EXPECT_EQ(nested_partitions(make_table({tensor("a", 30'000)}), 32).size(), 1u);
}

TEST(Partition, StartsWithOneBucketPerDtype) {
  const auto table = make_table({tensor("a", 1000, 0, DType::bf16), tensor("b", 1000, 1), tensor("c", 0, 2),
                                 tensor("d", 1000, 3, DType::bf16), tensor("e", 1000, 4, DType::f16)});
  const auto partitions = nested_partitions(table, 32);
  expect_nested(table, partitions);
  EXPECT_EQ(partitions.front().size(), 3u);
  EXPECT_EQ(partitions.back().size(), 4u);
}

TEST(Partition, NothingIsLeftOfATableWithoutElements) {
  EXPECT_TRUE(nested_partitions({}, 8).empty());
  EXPECT_TRUE(nested_partitions(make_table({tensor("a", 0), tensor("b", 0)}), 8).empty());
}

TEST(Partition, HoldsForAnyTableAndAnyReadyTimes) {
  core::Rng rng(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<core::TensorInfo> tensors;
    const auto count = static_cast<int>(rng.below(12));
    for (int t = 0; t < count; ++t) {
      const double odd_us[] = {-1, 1e300, std::numeric_limits<double>::infinity(), std::nan("")};
      const double ready_us = rng.below(8) == 0 ? odd_us[rng.below(4)] : rng.uniform() * 1e5;
      tensors.push_back(tensor("t" + std::to_string(t),
                               static_cast<int64_t>(rng.below(3) == 0 ? rng.below(3) : rng.below(3'000'000)), ready_us,
                               static_cast<DType>(rng.below(3))));
    }
    const auto table = make_table(tensors);
    const auto partitions = nested_partitions(table, 16);
    expect_nested(table, partitions);
    EXPECT_EQ(partitions.empty(), table.numel() == 0);
  }
}

TEST(Partition, TheBestNestedOneIsWithin2PercentOfTheBestOfAll) {
  const std::pair<testing::FusionModel, double> exact_optima_ms[] = {
      {testing::vgg16_random_k(8), 211.71}, {testing::resnet50_dgc(8), 65.89}, {testing::resnet50_random_k(8), 64.14},
      {testing::bert_random_k(8), 71.89},   {testing::gpt2_efsign(8), 224.30},
  };
  for (const auto& [model, optimum_ms] : exact_optima_ms) {
    const core::GradientTable table = testing::read_trace(model.trace);
    double best_ms = std::numeric_limits<double>::infinity();
    for (const Partition& partition : nested_partitions(table, 32)) {
      best_ms = std::min(best_ms, model.step_ms(table, core::uniform(partition, core::plain_all_reduce(), 1)));
    }
    EXPECT_LE(best_ms, 1.02 * optimum_ms) << model.trace;
  }
}

}  // namespace
}  // namespace gradtune::policies
