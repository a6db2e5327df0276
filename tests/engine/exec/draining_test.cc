// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/draining.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "engine/core/float16.h"
#include "tests/engine/exec/checked_step.h"
#include "tests/engine/exec/fleet.h"

namespace gradtune::exec {
namespace {

using core::DType;

double norm(const Values& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(sum);
}

Values random_values(size_t n, double size, uint64_t seed) {
  core::Rng rng(seed);
  Values values(n);
  for (float& value : values) value = static_cast<float>(size * rng.normal());
  return values;
}

// --- one bucket ------------------------------------------------------------------------------------------------------

struct Once {
  Values gradient, residual, next;
  Drained drained;
};

Once drain_once(Values gradient, const Values& residual, compress::HostQueue& queue) {
  Once once{.gradient = std::move(gradient), .residual = residual, .next = Values(residual.size(), 99), .drained = {}};
  once.drained = drain({.gradient = reinterpret_cast<std::byte*>(once.gradient.data()),
                        .dtype = DType::f32,
                        .n = static_cast<int64_t>(residual.size()),
                        .residual = once.residual.data(),
                        .residual_next = once.next.data()},
                       queue);
  return once;
}

TEST(Drain, AddsTheResidualsDirectionUpToItsShareOfTheGradient) {
  const auto queue = compress::make_serial_queue();
  const size_t n = 70'001;
  const Values gradient = random_values(n, 0.01, 1), residual = random_values(n, 0.07, 2);
  const Once once = drain_once(gradient, residual, *queue);
  EXPECT_TRUE(once.drained.added);
  EXPECT_TRUE(once.drained.left);
  Values added(n), expected(n);
  const double share = kDrainShare * norm(gradient) / norm(residual);
  for (size_t i = 0; i < n; ++i) {
    added[i] = once.gradient[i] - gradient[i];
    expected[i] = static_cast<float>(share) * residual[i];
    ASSERT_NEAR(added[i], expected[i], 1e-7) << i;
    const double before = static_cast<double>(gradient[i]) + static_cast<double>(residual[i]);
    ASSERT_NEAR(static_cast<double>(once.gradient[i]) + static_cast<double>(once.next[i]), before, 1e-8) << i;
  }
  EXPECT_NEAR(norm(added) / norm(gradient), kDrainShare, 1e-5);
}

TEST(Drain, ASmallResidualGoesAtOnce) {
  const auto queue = compress::make_serial_queue();
  const Values gradient = random_values(1'000, 1, 1), residual = random_values(1'000, 0.4, 2);
  const Once once = drain_once(gradient, residual, *queue);
  EXPECT_TRUE(once.drained.added);
  EXPECT_FALSE(once.drained.left);
  EXPECT_EQ(once.next, Values(1'000, 0));
  for (size_t i = 0; i < 1'000; ++i) EXPECT_EQ(once.gradient[i], gradient[i] + residual[i]);
}

TEST(Drain, AddsNothingWhereTheGradientSaysNothing) {
  const auto queue = compress::make_serial_queue();
  const Values residual = random_values(100, 1, 2);
  for (const float value : {0.0F, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Values gradient(100, 0);
    gradient[17] = value;
    const Once once = drain_once(gradient, residual, *queue);
    EXPECT_FALSE(once.drained.added);
    EXPECT_TRUE(once.drained.left);
    EXPECT_EQ(once.next, Values(100, 99)) << "it is not written";
    EXPECT_EQ(once.gradient[16], 0);
  }
  const Once nothing = drain_once(random_values(100, 1, 1), Values(100, 0), *queue);
  EXPECT_FALSE(nothing.drained.added);
  EXPECT_FALSE(nothing.drained.left);
}

TEST(Drain, GivesTheSameBitsForEveryNumberOfThreads) {
  const Values gradient = random_values(3'000'017, 1, 1), residual = random_values(3'000'017, 3, 2);
  const auto serial = compress::make_serial_queue(), arena = compress::make_arena_queue(kHostThreads);
  const Once one = drain_once(gradient, residual, *serial), many = drain_once(gradient, residual, *arena);
  EXPECT_EQ(one.gradient, many.gradient);
  EXPECT_EQ(one.next, many.next);
}

// The residual keeps the loss of rounding the sum to 16 bits.
TEST(Drain, SixteenBitGradientsOweWhatTheirRoundingLost) {
  const auto queue = compress::make_serial_queue();
  const Values residual = random_values(5'000, 3, 2), values = random_values(5'000, 1, 1);
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const auto widen = dtype == DType::bf16 ? core::widen_bf16 : core::widen_f16;
    std::vector<uint16_t> gradient;
    for (const float value : values) {
      gradient.push_back(dtype == DType::bf16 ? core::narrow_bf16(value) : core::narrow_f16(value));
    }
    const std::vector<uint16_t> before = gradient;
    Values next(5'000, 99);
    const Drained drained = drain({.gradient = reinterpret_cast<std::byte*>(gradient.data()),
                                   .dtype = dtype,
                                   .n = 5'000,
                                   .residual = residual.data(),
                                   .residual_next = next.data()},
                                  *queue);
    EXPECT_TRUE(drained.added && drained.left);
    for (size_t i = 0; i < next.size(); ++i) {
      const double was = static_cast<double>(widen(before[i])) + static_cast<double>(residual[i]);
      ASSERT_NEAR(static_cast<double>(widen(gradient[i])) + static_cast<double>(next[i]), was, 1e-6);
    }
  }
}

// --- on ranks --------------------------------------------------------------------------------------------------------

const char* const kTopk = "topk:0.01: encode@device all_gather decode@device";

class Draining : public testing::Test {
 protected:
  static constexpr int kSize = 2;
  const core::GradientTable table_ =
      make_table({{4'001, DType::f32}, {900, DType::bf16}, {6'000, DType::f32}, {77, DType::f16}});

  // Steps of a strategy that leaves large residuals.
  void run_into_debt(Fleet& fleet) {
    fleet.run(make_strategy(table_, kTopk, 9'000, 2));
    for (int i = 0; i < 40; ++i) step(fleet);
  }
  void step(Fleet& fleet) {
    const std::vector<Values> gradients = random_gradients(table_, kSize, rng_);
    for (const core::Status& status : fleet.step(gradients)) ASSERT_TRUE(status.ok()) << status.error().message;
  }

  core::Rng rng_{5};
};

TEST_F(Draining, WaitsWhileAStrategyWithoutLossIsOnTrialAndEndsAfterItsCommit) {
  for (const char* option : {"all_reduce", "reduce_scatter all_gather", "bf16: encode@device all_reduce decode@device",
                             "none: encode@host all_to_all decode@host encode@host all_gather decode@host"}) {
    Fleet fleet(kSize, table_, kWithHost);
    ASSERT_NO_FATAL_FAILURE(run_into_debt(fleet));
    const std::vector<Values> parked = fleet.residuals();
    const core::Strategy lossless = make_strategy(table_, option, 11'000, 2);
    fleet.run(lossless);
    for (int i = 0; i < 3; ++i) ASSERT_NO_FATAL_FAILURE(step(fleet));
    EXPECT_EQ(fleet.residuals(), parked) << option;
    const int64_t bytes = fleet.rank(0).executor().memory_bytes();

    fleet.commit(lossless);
    std::vector<double> left = {norm(parked[0])};
    while (left.back() > 0 && left.size() < 100) {
      ASSERT_NO_FATAL_FAILURE(step(fleet));
      left.push_back(norm(fleet.residuals()[0]));
      ASSERT_LT(left.back(), left[left.size() - 2]) << option;
    }
    EXPECT_EQ(fleet.residuals(), std::vector<Values>(kSize, Values(parked[0].size(), 0))) << option;
    EXPECT_GT(left.size(), 5) << "several steps";
    EXPECT_LE(fleet.rank(0).executor().memory_bytes(), bytes - 8 * table_.numel()) << "the memory is free";
    ASSERT_NO_FATAL_FAILURE(step(fleet));
    EXPECT_FALSE(fleet.rank(0).executor().drained(0));

    ASSERT_NO_FATAL_FAILURE(run_into_debt(fleet));
    EXPECT_GT(norm(fleet.residuals()[0]), 0) << "and comes back when it is needed";
  }
}

TEST_F(Draining, WhatAnotherCompressorLeftTakesMemoryUntilItIsPaidBack) {
  Fleet fleet(kSize, table_, kWithHost);
  ASSERT_NO_FATAL_FAILURE(run_into_debt(fleet));
  const int64_t bytes = fleet.rank(0).executor().memory_bytes();
  const core::Strategy other = make_strategy(table_, "efsignsgd:64: encode@device all_gather decode@device", 9'000, 2);
  fleet.run(other);
  const int64_t with_parked = fleet.rank(0).executor().memory_bytes();
  EXPECT_GE(with_parked, bytes + 4 * table_.numel());
  for (int i = 0; i < 100; ++i) ASSERT_NO_FATAL_FAILURE(step(fleet));
  EXPECT_EQ(fleet.rank(0).executor().memory_bytes(), with_parked) << "on trial it waits";
  fleet.commit(other);
  int steps = 0;
  for (; fleet.rank(0).executor().memory_bytes() == with_parked && steps < 200; ++steps) {
    ASSERT_NO_FATAL_FAILURE(step(fleet));
  }
  EXPECT_GT(steps, 5);
  EXPECT_EQ(fleet.rank(0).executor().memory_bytes(), with_parked - 4 * table_.numel());
  EXPECT_GT(norm(fleet.residuals()[0]), 0) << "its own";
}

TEST_F(Draining, LosesNothingOverSwitchesThereAndBack) {
  const std::vector<std::string> options = {"all_reduce", kTopk, "efsignsgd:64: encode@device all_gather decode@device",
                                            "bf16: encode@device all_gather decode@device",
                                            "reduce_scatter all_gather"};
  const core::GradientTable table = make_table({{1'001, DType::f32}, {2'000, DType::f32}});
  Fleet fleet(kSize, table, kWithHost);
  std::vector<double> given(3'001), applied(3'001), magnitude(3'001);
  for (int change = 0; change < 60; ++change) {
    const core::Strategy strategy =
        make_strategy(table, options[rng_.below(options.size())], 1'000 + static_cast<int64_t>(rng_.below(8'000)), 2);
    rng_.below(2) == 0 ? fleet.commit(strategy) : fleet.run(strategy);
    for (uint64_t steps = rng_.below(8); steps > 0; --steps) {
      const std::vector<Values> gradients = random_gradients(table, kSize, rng_);
      for (const core::Status& status : fleet.step(gradients)) ASSERT_TRUE(status.ok());
      const Values average = fleet.rank(0).average();
      for (size_t i = 0; i < given.size(); ++i) {
        for (const Values& gradient : gradients) given[i] += static_cast<double>(gradient[i]);
        applied[i] += kSize * static_cast<double>(average[i]);
        magnitude[i] += std::abs(static_cast<double>(average[i]));
      }
    }
  }
  const std::vector<Values> residuals = fleet.residuals();
  for (size_t i = 0; i < given.size(); ++i) {
    double kept = 0;
    for (const Values& residual : residuals) kept += static_cast<double>(residual[i]);
    // bf16 rounds what it sends and keeps no residual.
    ASSERT_NEAR(applied[i] + kept, given[i], 0x1p-8 * kSize * magnitude[i] + 1e-5) << i;
  }
}

TEST_F(Draining, OnlyInBucketsThatKeepNoResidual) {
  Fleet fleet(kSize, table_);
  ASSERT_NO_FATAL_FAILURE(run_into_debt(fleet));
  core::Strategy mixed = make_strategy(table_, "all_reduce", 1 << 20, 2);
  ASSERT_GE(mixed.buckets.size(), 3U);
  mixed.buckets[0].option = make_strategy(table_, kTopk, 1 << 20, 2).buckets[0].option;
  mixed.order.clear();
  for (size_t b = 0; b < mixed.buckets.size(); ++b) {
    mixed.order.push_back({static_cast<int32_t>(b), b == 0 ? 1 : 0});
  }
  fleet.commit(mixed);
  for (int i = 0; i < 40; ++i) ASSERT_NO_FATAL_FAILURE(step(fleet));
  const Values residual = fleet.residuals()[0];
  for (const core::Slice& slice : mixed.buckets[0].slices) {
    const int64_t begin = slice.tensor == 0 ? 0 : 4'001 + 900;
    EXPECT_GT(norm(Values(residual.begin() + begin, residual.begin() + begin + slice.length)), 0);
  }
  EXPECT_EQ(norm(Values(residual.begin() + 4'001, residual.begin() + 4'901)), 0);
  EXPECT_EQ(norm(Values(residual.end() - 77, residual.end())), 0);
}

TEST_F(Draining, AStepThatIsNotFiniteTakesNothing) {
  Fleet fleet(kSize, table_);
  ASSERT_NO_FATAL_FAILURE(run_into_debt(fleet));
  fleet.commit(make_strategy(table_, "all_reduce", 9'000, 2));
  ASSERT_NO_FATAL_FAILURE(step(fleet));
  const std::vector<Values> before = fleet.residuals();
  std::vector<Values> bad = random_gradients(table_, kSize, rng_);
  bad[1][4'000] = std::numeric_limits<float>::quiet_NaN();
  for (const core::Status& status : fleet.step(bad)) ASSERT_TRUE(status.ok());
  EXPECT_FALSE(fleet.rank(0).finite());
  EXPECT_EQ(fleet.residuals(), before);
  ASSERT_NO_FATAL_FAILURE(step(fleet));
  EXPECT_NE(fleet.residuals(), before);
}

}  // namespace
}  // namespace gradtune::exec
