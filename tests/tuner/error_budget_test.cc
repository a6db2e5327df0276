// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/error_budget.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "engine/compress/compressor.h"

namespace gradtune::tuner {
namespace {

using Kind = core::Excess::Kind;
using core::BucketLoss;

// `number` tells strategies apart whose buckets are not the same.
core::Strategy strategy_of(size_t buckets, int number) {
  core::Strategy strategy;
  for (size_t b = 0; b < buckets; ++b) {
    strategy.buckets.push_back({.slices = {{.tensor = static_cast<int32_t>(b), .offset = number, .length = 1}},
                                .option = core::plain_all_reduce()});
  }
  return strategy;
}

// Steps until something is found, at most so many; what, is in `found`.
struct Bucket {
  ErrorBudget budget;
  core::Excess found = {};

  template <typename Loss>
  int until_found(int most, Loss loss) {
    for (int step = 0; step < most; ++step) {
      const BucketLoss losses[] = {{.error = 0.1, .residual = 0.1}, loss(step)};
      found = budget.record(losses);
      if (found.kind != Kind::none) return step + 1;
    }
    return -1;
  }
  int until_found(int most, const BucketLoss& loss) {
    return until_found(most, [&](int) { return loss; });
  }
};

TEST(ErrorBudget, AUsersBudgetHoldsFromThe32ndStepAfterACommit) {
  Bucket run{ErrorBudget({.budget = 0.5})};
  run.budget.commit(strategy_of(2, 3));
  EXPECT_EQ(run.until_found(100, {.error = 0.6}), ErrorBudget::kSteps);
  EXPECT_EQ(run.found, (core::Excess{.kind = Kind::error, .bucket = 1, .value = 0.6, .allowed = 0.5}));
  run.budget.commit(strategy_of(2, 4));
  EXPECT_EQ(run.until_found(500, {.error = 0.5}), -1) << "not more than it";
}

TEST(ErrorBudget, OnTrialItTakesThreeStepsAndNothingIsHeldAgainstAStrategyWithoutAUsersBudget) {
  Bucket run{ErrorBudget({.budget = 0.5})};
  run.budget.run(strategy_of(2, 3));
  EXPECT_EQ(run.until_found(100, {.error = 0.6, .residual = 1000}), ErrorBudget::kTrialSteps);
  EXPECT_EQ(run.found.kind, Kind::error);
  run.budget.run(strategy_of(2, 3));
  EXPECT_EQ(run.until_found(100, [](int step) { return BucketLoss{.error = step == 1 ? 0.9 : 0.4}; }), -1);
  Bucket free{ErrorBudget({})};
  free.budget.run(strategy_of(2, 3));
  EXPECT_EQ(free.until_found(300, {.error = 1.5, .residual = 1000}), -1);
}

core::Strategy compressed(const char* codec, double parameter) {
  core::Strategy strategy = strategy_of(2, 3);
  strategy.buckets[1].option = core::gather_payloads({codec, parameter}, core::Place::device);
  return strategy;
}

TEST(ErrorBudget, OnTrialACompressorThatNoOneNamedMayLoseTwiceWhatItDidInTrainings) {
  const double seen = core::traits_of({"int4", 64}, compress::known_traits())->seen_error;
  const double allowed = ErrorBudget::kFar * seen;
  ASSERT_GT(allowed, ErrorBudget::kLeast);
  Bucket run{ErrorBudget({.names_none = true})};
  run.budget.run(compressed("int4", 64));
  EXPECT_EQ(run.until_found(100, {.error = 1.01 * allowed}), ErrorBudget::kTrialSteps);
  EXPECT_EQ(run.found, (core::Excess{.kind = Kind::error, .bucket = 1, .value = 1.01 * allowed, .allowed = allowed}));
  run.budget.run(compressed("int4", 64));
  EXPECT_EQ(run.until_found(100, {.error = 0.99 * allowed}), -1);
  run.budget.run(compressed("int8", 256));
  EXPECT_EQ(run.until_found(100, {.error = 0.99 * ErrorBudget::kLeast}), -1) << "however little was seen";
  run.budget.run(compressed("int4", 128));
  EXPECT_EQ(run.until_found(100, {.error = 1}), -1) << "no training had that block";

  Bucket named{ErrorBudget({.names_none = false})};
  named.budget.run(compressed("int4", 64));
  EXPECT_EQ(named.until_found(100, {.error = 1}), -1);
  Bucket given{ErrorBudget({.budget = 4 * allowed, .names_none = true})};
  given.budget.run(compressed("int4", 64));
  EXPECT_EQ(given.until_found(100, {.error = 3 * allowed}), -1);
}

TEST(ErrorBudget, ItIsTheMedianThatCounts) {
  Bucket run{ErrorBudget({.budget = 0.5})};
  run.budget.commit(strategy_of(2, 3));
  const auto often = [](int share) {
    return [share](int step) { return BucketLoss{.error = step % 10 < share ? 0.9 : 0.3}; };
  };
  EXPECT_EQ(run.until_found(400, often(4)), -1);
  EXPECT_GT(run.until_found(400, often(7)), 0);
}

TEST(ErrorBudget, WithoutAUsersItIsAFifthMoreThanWasSeenAfterTheCommit) {
  Bucket run{ErrorBudget({})};
  run.budget.commit(strategy_of(2, 3));
  // Before it has settled the error may be anything.
  EXPECT_EQ(run.until_found(64, [](int step) { return BucketLoss{.error = step < 32 ? 0.2 : 0.6}; }), -1);
  EXPECT_EQ(run.until_found(300, {.error = 0.71}), -1);
  const int steps = run.until_found(300, {.error = 0.73});
  EXPECT_GE(steps, ErrorBudget::kSteps / 2);
  EXPECT_LE(steps, ErrorBudget::kSteps);
  EXPECT_NEAR(run.found.allowed, 0.72, 1e-12);
}

TEST(ErrorBudget, WhatWasSeenOfAStrategyStaysWhenItIsCommittedAgain) {
  Bucket run{ErrorBudget({})};
  run.budget.commit(strategy_of(2, 3));
  EXPECT_EQ(run.until_found(100, {.error = 0.4}), -1);
  run.budget.run(strategy_of(1, 3));
  run.budget.commit(strategy_of(2, 3));
  EXPECT_EQ(run.until_found(100, {.error = 0.5}), ErrorBudget::kSteps);
  run.budget.commit(strategy_of(2, 5));
  EXPECT_EQ(run.until_found(100, {.error = 0.5}), -1) << "another one is another thing";
}

TEST(ErrorBudget, WhatWasSeenOfABucketHoldsWhereAnotherOneWasReplaced) {
  const core::Strategy before = strategy_of(2, 3);
  for (const int replaced : {0, 1}) {
    Bucket run{ErrorBudget({})};
    run.budget.commit(before);
    EXPECT_EQ(run.until_found(100, {.error = 0.4}), -1);
    core::Strategy after = before;
    after.buckets[static_cast<size_t>(replaced)].option = core::gather_payloads({.name = "topk"}, core::Place::device);
    run.budget.run(strategy_of(1, 3));
    run.budget.commit(after);
    EXPECT_EQ(run.until_found(100, {.error = 0.5}), replaced == 0 ? ErrorBudget::kSteps : -1);
  }
}

// Saved and restored at any step, it finds the same.
TEST(ErrorBudget, ItsStateIsAllThatItKnows) {
  const auto loss = [](int step) {
    return std::vector<BucketLoss>{{.error = 0.3 + 0.1 * std::sin(step), .residual = 4 * std::exp2(step / 100.0)}};
  };
  ErrorBudget whole({}), interrupted({});
  for (ErrorBudget* each : {&whole, &interrupted}) each->commit(strategy_of(1, 0));
  int found = 0;
  for (int step = 0; step < 500; ++step) {
    const core::Excess excess = whole.record(loss(step));
    EXPECT_EQ(interrupted.record(loss(step)), excess) << step;
    ErrorBudget restored({});
    restored.restore(interrupted.state());
    interrupted = restored;
    found += excess.kind == Kind::none ? 0 : 1;
  }
  EXPECT_GT(found, 0);
}

TEST(ErrorBudget, ATinyErrorMayGrowToWhatIsStillSmall) {
  Bucket run{ErrorBudget({})};
  run.budget.commit(strategy_of(2, 3));
  EXPECT_EQ(run.until_found(100, {.error = 1e-9}), -1);
  EXPECT_EQ(run.until_found(100, {.error = ErrorBudget::kLeast}), -1);
  EXPECT_GT(run.until_found(100, {.error = 1.01 * ErrorBudget::kLeast}), 0);
}

TEST(ErrorBudget, AResidualThatRunsAwayIsFound) {
  Bucket run{ErrorBudget({})};
  run.budget.commit(strategy_of(2, 3));
  const int rand_k = run.until_found(200, [](int step) { return BucketLoss{.residual = 0.4 * step}; });
  EXPECT_NEAR(rand_k, 92, 5) << "above 30, by the median of 32 steps";
  EXPECT_EQ(run.found.kind, Kind::residual);
  EXPECT_EQ(run.found.bucket, 1);
  EXPECT_EQ(run.found.allowed, ErrorBudget::kMostResidual);

  run.budget.commit(strategy_of(2, 4));
  const auto doubling = [](int step) {
    return BucketLoss{.residual = step < 250 ? 6 : 6 * std::exp2((step - 250) / 80.0)};
  };
  EXPECT_NEAR(run.until_found(600, doubling), 250 + 80 + 16 + 10, 30) << "when it has doubled";
  EXPECT_LT(run.found.value, 20);
}

// Residuals as measured of compressors that lose no accuracy, or little.
TEST(ErrorBudget, ResidualsThatFindTheirLevelAreLeftAlone) {
  const auto levels = [](double at_50, double at_180, double at_430) {
    return [=](int step) {
      const double share = step < 180 ? (step - 50) / 130.0 : (step - 180) / 250.0;
      const double level = step < 50    ? at_50 * std::sqrt(step / 50.0)
                           : step < 180 ? at_50 + share * (at_180 - at_50)
                                        : at_180 + share * (at_430 - at_180);
      return BucketLoss{.error = 0.95, .residual = level};
    };
  };
  const double known[][3] = {{3.0, 3.5, 3.6}, {6.4, 15.8, 12.7}, {1.8, 2.5, 1.9}, {3.0, 6.8, 8.4}};
  for (const auto& [a, b, c] : known) {
    Bucket run{ErrorBudget({})};
    run.budget.commit(strategy_of(2, 3));
    EXPECT_EQ(run.until_found(460, levels(a, b, c)), -1) << a;
  }
  // A gradient that shrinks to half is no divergence.
  Bucket run{ErrorBudget({})};
  run.budget.commit(strategy_of(2, 3));
  EXPECT_EQ(run.until_found(600, [](int step) { return BucketLoss{.residual = step < 300 ? 3.6 : 7.2}; }), -1);
}

TEST(ErrorBudget, TheWorstBucketIsNamed) {
  ErrorBudget budget({.budget = 0.5});
  budget.commit(strategy_of(3, 0));
  core::Excess found;
  for (int step = 0; step < ErrorBudget::kSteps; ++step) {
    found = budget.record(std::vector<BucketLoss>{{.error = 0.6}, {.error = 0.9}, {.error = 0.1, .residual = 45}});
  }
  EXPECT_EQ(found, (core::Excess{.kind = Kind::error, .bucket = 1, .value = 0.9, .allowed = 0.5}));
}

TEST(ErrorBudget, BucketsThatLoseNothingAreNotLookedAt) {
  ErrorBudget budget({.budget = 0.5});
  budget.commit(strategy_of(1, 0));
  for (int step = 0; step < 200; ++step) EXPECT_EQ(budget.record(std::vector<BucketLoss>(1)).kind, Kind::none);
}

}  // namespace
}  // namespace gradtune::tuner
