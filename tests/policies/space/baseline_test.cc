// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/space/baseline.h"

#include <gmock/gmock.h>

#include "tests/policies/jobs.h"

namespace gradtune::policies {
namespace {

using core::DType;
using core::Fidelity;
using core::Slice;
using testing::make_table;
using testing::reference_table;
using testing::tensor;

constexpr int64_t kMiB = 1 << 20;

std::vector<int64_t> bucket_numels(const core::Strategy& strategy) {
  std::vector<int64_t> sizes;
  for (const core::Bucket& bucket : strategy.buckets) sizes.push_back(core::numel(bucket));
  return sizes;
}

TEST(Baseline, IsWhatDdpDoes) {
  const auto candidates = baselines(reference_table(), Fidelity::exact);
  ASSERT_EQ(candidates.size(), 1u);
  const core::Strategy& strategy = candidates[0].strategy;
  EXPECT_EQ(candidates[0].label, "all_reduce baseline");
  EXPECT_TRUE(core::validate(strategy, reference_table()).ok());
  // The first bucket is full with fc2.weight; fc1 alone has 24.5 MiB, so it waits for the convolutions.
  EXPECT_THAT(bucket_numels(strategy), ::testing::ElementsAre(2'108'426, 6'443'392));
  for (const core::Bucket& bucket : strategy.buckets) EXPECT_EQ(bucket.option, core::plain_all_reduce());
  EXPECT_EQ(strategy.in_flight, 2);
}

TEST(Baseline, FirstBucketHoldsOneMebibyteAndTheNext25) {
  std::vector<core::TensorInfo> tensors;
  for (int i = 0; i < 60; ++i) tensors.push_back(tensor("t" + std::to_string(i), kMiB / 4));
  const auto candidates = baselines(make_table(tensors), Fidelity::exact);
  EXPECT_THAT(bucket_numels(candidates[0].strategy),
              ::testing::ElementsAre(kMiB / 4, 25 * kMiB / 4, 25 * kMiB / 4, 9 * kMiB / 4));
}

TEST(Baseline, NeverSplitsATensor) {
  const auto candidates = baselines(make_table({tensor("huge", 100 * kMiB)}), Fidelity::exact);
  ASSERT_EQ(candidates[0].strategy.buckets.size(), 1u);
  EXPECT_EQ(candidates[0].strategy.buckets[0].slices, (std::vector<Slice>{{0, 0, 100 * kMiB}}));
}

TEST(Baseline, HasA16BitFormFromFidelityHalfOn) {
  for (Fidelity fidelity : {Fidelity::half, Fidelity::lossy}) {
    const auto candidates = baselines(reference_table(), fidelity);
    ASSERT_EQ(candidates.size(), 2u);
    EXPECT_EQ(candidates[1].label, "bf16 all_reduce baseline");
    EXPECT_TRUE(core::validate(candidates[1].strategy, reference_table()).ok());
    for (const core::Bucket& bucket : candidates[1].strategy.buckets) {
      EXPECT_EQ(core::to_string(bucket.option), "bf16: encode@device all_reduce decode@device");
    }
  }
}

TEST(Baseline, LeavesGradientsOf16BitsAsTheyAre) {
  const auto pure = make_table({tensor("a", 1000, 0, DType::bf16), tensor("b", 1000, 1, DType::f16)});
  EXPECT_EQ(baselines(pure, Fidelity::half).size(), 1u);

  const auto mixed = make_table({tensor("a", 1000, 0, DType::bf16), tensor("b", 1000, 1)});
  const auto candidates = baselines(mixed, Fidelity::half);
  ASSERT_EQ(candidates.size(), 2u);
  for (const core::Bucket& bucket : candidates[1].strategy.buckets) {
    EXPECT_EQ(bucket.option.codecs.empty(), bucket.slices[0].tensor == 0);
  }
  EXPECT_TRUE(core::validate(candidates[1].strategy, mixed).ok());
}

TEST(Baseline, OfNothingIsNothing) {
  const auto candidates = baselines({}, Fidelity::lossy);
  ASSERT_EQ(candidates.size(), 1u);
  EXPECT_TRUE(candidates[0].strategy.buckets.empty());
  EXPECT_TRUE(core::validate(candidates[0].strategy, {}).ok());
}

}  // namespace
}  // namespace gradtune::policies
