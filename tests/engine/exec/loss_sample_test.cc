// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/loss_sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/engine/exec/fleet.h"
#include "tests/suites/communicator_ranks.h"

namespace gradtune::exec {
namespace {

using core::BucketLoss;
using core::DType;

double norm(const Values& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(sum);
}

Values sum_of(const Values& a, const Values& b) {
  Values sum = a;
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += b[i];
  return sum;
}

// One bucket of n elements after some steps: the executor's sample of the last one, and the true values.
struct Seen {
  BucketLoss loss;
  double error, residual;
};
Seen last_of(int64_t n, const std::string& option, int steps, DType dtype = DType::f32) {
  const core::GradientTable table = make_table({{n, dtype}});
  Fleet fleet(2, table);
  fleet.run(make_strategy(table, option, 1 << 28, 1));
  core::Rng rng(7);
  Seen seen{};
  for (int i = 0; i < steps; ++i) {
    const std::vector<Values> gradients = random_gradients(table, 2, rng);
    const Values before = fleet.residuals()[0];
    for (const core::Status& status : fleet.step(gradients)) EXPECT_TRUE(status.ok());
    seen = {fleet.rank(0).executor().loss(0), norm(fleet.residuals()[0]) / norm(sum_of(gradients[0], before)),
            norm(before) / norm(gradients[0])};
  }
  return seen;
}

const std::string kFeedback[] = {"topk:0.01", "efsignsgd:64", "onebit", "int8:256", "fp8e4m3:128", "randk:0.1"};

TEST(LossSample, OfASmallBucketIsTheWholeTruth) {
  for (const std::string& codec : kFeedback) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Seen seen = last_of(2'001, codec + ": encode@device all_gather decode@device", 6, dtype);
      EXPECT_NEAR(seen.loss.error, seen.error, 1e-5 * seen.error) << codec;
      EXPECT_NEAR(seen.loss.residual, seen.residual, 1e-5 * seen.residual + 1e-12) << codec;
    }
  }
}

TEST(LossSample, OfALargeOneIsNearIt) {
  for (const std::string& codec : kFeedback) {
    const Seen seen = last_of(300'007, codec + ": encode@device all_gather decode@device", 6);
    EXPECT_NEAR(seen.loss.error, seen.error, 0.1 * seen.error) << codec;
    EXPECT_NEAR(seen.loss.residual, seen.residual, 0.1 * seen.residual) << codec;
  }
}

TEST(LossSample, LooksElsewhereInEachStep) {
  const std::string option = "signsgd: encode@device all_gather decode@device";
  const core::GradientTable table = make_table({{300'007, DType::f32}});
  Fleet fleet(1, table);
  fleet.run(make_strategy(table, option, 1 << 28, 1));
  Values gradient(300'007, 1);
  for (size_t i = 0; i < gradient.size(); ++i) gradient[i] = static_cast<float>(i % 1'000);
  std::vector<double> seen;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(fleet.step({gradient})[0].ok());
    seen.push_back(fleet.rank(0).executor().loss(0).error);
  }
  EXPECT_NE(seen[0], seen[1]);
  EXPECT_NE(seen[1], seen[2]);
}

// A gradient whose norm is in a few rows, which a product of rank 16 fits, while it fits other rows badly. A few long
// runs miss these rows in most steps, and every second error that they find is above the largest true one.
TEST(LossSample, FindsTheFewRowsThatHaveMostOfTheNorm) {
  constexpr int64_t kRows = 512, kColumns = 768, kLarge = 24, kSteps = 24;
  const core::GradientTable table = [&] {
    core::GradientTable made = make_table({{kRows * kColumns, DType::f32}});
    made.tensors[0].shape = {kRows, kColumns};
    return made;
  }();
  Fleet fleet(2, table);
  fleet.run(make_strategy(
      table, "powersgd:16: encode@device all_reduce decode@device encode@device.1 all_reduce decode@device.1", 1 << 28,
      1));
  core::Rng rng(11);
  std::vector<double> errors;
  double worst = 0;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<Values> gradients = random_gradients(table, 2, rng);
    for (Values& gradient : gradients) {
      for (int64_t i = 0; i < kRows * kColumns; ++i) {
        gradient[static_cast<size_t>(i)] *= i / kColumns % (kRows / kLarge) == 0 ? 10 : 1;
      }
    }
    const Values before = fleet.residuals()[0];
    for (const core::Status& status : fleet.step(gradients)) ASSERT_TRUE(status.ok());
    worst = std::max(worst, norm(fleet.residuals()[0]) / norm(sum_of(gradients[0], before)));
    errors.push_back(fleet.rank(0).executor().loss(0).error);
  }
  std::sort(errors.begin(), errors.end());
  EXPECT_LE(worst, 1);
  EXPECT_LT(errors[kSteps / 2], 1.02 * worst);
}

// Without error feedback the sample is encoded once more: its error is that of the compressor on such numbers.
TEST(LossSample, OfCompressorsThatKeepNoError) {
  for (const int64_t n : {int64_t{3'001}, int64_t{300'007}}) {
    const double coarse = last_of(n, "qsgd:2: encode@device all_gather decode@device", 3).loss.error;
    const double fine = last_of(n, "qsgd:8: encode@device all_gather decode@device", 3).loss.error;
    const double natural = last_of(n, "natural: encode@device all_gather decode@device", 3).loss.error;
    EXPECT_GT(coarse, 10 * fine);
    EXPECT_NEAR(fine, 0.05, 0.03);                // at most sqrt(0.0079)
    EXPECT_NEAR(natural, std::sqrt(0.06), 0.08);  // at most sqrt(1 / 8)
    EXPECT_LT(last_of(n, "natural: encode@device all_gather decode@device", 3).loss.residual, 0) << "it has none";
  }
}

TEST(LossSample, WhatLosesNothingIsNotLookedAt) {
  for (const char* option : {"all_reduce", "bf16: encode@device all_reduce decode@device",
                             "none: encode@device all_gather decode@device", "reduce_scatter all_gather"}) {
    const BucketLoss loss = last_of(3'001, option, 2).loss;
    EXPECT_LT(loss.error, 0) << option;
    EXPECT_LT(loss.residual, 0) << option;
  }
}

TEST(LossSample, OfEveryProgramThatLosesAndFeedsBackIsAShareOfTheGradient) {
  const core::GradientTable table = make_table({{12'000, DType::f32}, {36'000, DType::f32}});
  std::vector<std::string> options = all_options(core::Place::device);
  for (std::string& option : all_options(core::Place::host)) options.push_back(std::move(option));
  Fleet fleet(4, table, kWithHost);
  core::Rng rng(9);
  for (const std::string& option : options) {
    const core::Strategy strategy = make_strategy(table, option, 80'000, 2);
    const core::TraitsTable known = compress::known_traits();
    const core::CompressorTraits* traits = core::traits_of(
        strategy.buckets[0].option.codecs.empty() ? core::CompressorSpec{"none"} : strategy.buckets[0].option.codecs[0],
        known);
    fleet.run(strategy);
    for (int i = 0; i < 3; ++i) {
      for (const core::Status& status : fleet.step(random_gradients(table, 4, rng))) ASSERT_TRUE(status.ok());
    }
    for (int r = 0; r < 4; ++r) {
      for (int32_t b = 0; b < static_cast<int32_t>(strategy.buckets.size()); ++b) {
        const BucketLoss loss = fleet.rank(r).executor().loss(b);
        if (traits->fidelity < core::Fidelity::lossy) {
          EXPECT_LT(loss.error, 0) << option;
          continue;
        }
        EXPECT_GT(loss.error, 1e-3) << option;
        // With momentum inside, more than the gradient is missing: parts of earlier steps too.
        const double most = traits->replaces_momentum ? 1.05 : 1.001;
        EXPECT_LT(loss.error, traits->error_feedback ? most : 20) << option;
        EXPECT_EQ(loss.residual > 0, traits->error_feedback) << option;
      }
    }
  }
}

// A node's sum is encoded: it is in units of the average, but its error is still relative to it.
TEST(LossSample, OfAnEncodedSumOfANode) {
  const core::GradientTable table = make_table({{9'000, DType::f32}});
  Fleet fleet(make_groups(4, 2), table, {});
  fleet.run(make_strategy(table,
                          "topk:0.1: reduce_scatter@intra encode@device all_gather@inter decode@device "
                          "all_gather@intra",
                          1 << 20, 1));
  core::Rng rng(9);
  for (int i = 0; i < 3; ++i) {
    for (const core::Status& status : fleet.step(random_gradients(table, 4, rng))) ASSERT_TRUE(status.ok());
    for (int r = 0; r < 4; ++r) {
      EXPECT_GT(fleet.rank(r).executor().loss(0).error, 0.6);
      EXPECT_LT(fleet.rank(r).executor().loss(0).error, 0.95);
    }
  }
}

}  // namespace
}  // namespace gradtune::exec
