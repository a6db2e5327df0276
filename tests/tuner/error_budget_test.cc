// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/error_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "engine/compress/compressor.h"

namespace gradtune::tuner {
namespace {

using Kind = core::Excess::Kind;
using core::BucketLoss;

// `number` distinguishes strategies whose buckets differ.
core::Strategy strategy_of(size_t buckets, int number) {
  core::Strategy strategy;
  for (size_t b = 0; b < buckets; ++b) {
    strategy.buckets.push_back({.slices = {{.tensor = static_cast<int32_t>(b), .offset = number, .length = 1}},
                                .option = core::plain_all_reduce()});
  }
  return strategy;
}

// Steps until a finding, at most the given number; `found` has the finding.
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

TEST(ErrorBudget, AUsersBudgetIsAHardLimit) {
  for (const bool is_committed : {false, true}) {
    Bucket run{ErrorBudget({.budget = 0.5})};
    is_committed ? run.budget.commit(strategy_of(2, 3)) : run.budget.run(strategy_of(2, 3));
    EXPECT_EQ(run.until_found(100, {.error = 0.6}), is_committed ? ErrorBudget::kSteps : ErrorBudget::kFirst);
    EXPECT_EQ(run.found, (core::Excess{.kind = Kind::error, .bucket = 1, .value = 0.6, .allowed = 0.5}));
    is_committed ? run.budget.commit(strategy_of(2, 4)) : run.budget.run(strategy_of(2, 4));
    EXPECT_EQ(run.until_found(500, {.error = 0.5}), -1) << "not more than it";
    is_committed ? run.budget.commit(strategy_of(2, 5)) : run.budget.run(strategy_of(2, 5));
    EXPECT_EQ(run.until_found(100, [](int step) { return BucketLoss{.error = step == 1 ? 0.9 : 0.4}; }), -1);
  }
}

TEST(ErrorBudget, WithoutAUsersNothingIsHeldAgainstACompressorThatNoTrainingHad) {
  Bucket free{ErrorBudget({})};
  free.budget.run(strategy_of(2, 3));
  EXPECT_EQ(free.until_found(300, {.error = 1.5, .residual = 1000}), -1);
}

core::Strategy compressed(const char* codec, double parameter) {
  core::Strategy strategy = strategy_of(2, 3);
  strategy.buckets[1].option = core::gather_payloads({codec, parameter}, core::Place::device);
  return strategy;
}

TEST(ErrorBudget, FarIsTwiceAnErrorOrMoreThanAllOfTheGradient) {
  EXPECT_DOUBLE_EQ(far_error(0.13), 0.26);
  EXPECT_DOUBLE_EQ(far_error(0.37), 0.74);
  EXPECT_DOUBLE_EQ(far_error(0.56), ErrorBudget::kAboveOne);
  EXPECT_DOUBLE_EQ(far_error(0.99), ErrorBudget::kAboveOne);
  EXPECT_DOUBLE_EQ(far_error(1.3), 2.6);
  for (double e = 0; e < 3; e += 0.01) EXPECT_LE(far_error(e), far_error(e + 0.01)) << e;
}

// Early in a training the gradient is of low rank, and some steps later it is not. A sample's error scatters around
// the true one.
TEST(ErrorBudget, AnErrorThatComesNearOneIsLeftAlone) {
  for (const double begin : {0.56, 0.7, 0.85}) {
    for (const bool is_committed : {false, true}) {
      Bucket run{ErrorBudget({.names_none = true})};
      is_committed ? run.budget.commit(compressed("powersgd", 16)) : run.budget.run(compressed("powersgd", 16));
      const auto rising = [&](int step) {
        return BucketLoss{.error = (step < 100 ? begin : 0.99) * (1 + 0.09 * std::sin(step))};
      };
      EXPECT_EQ(run.until_found(300, rising), -1) << begin;
    }
  }
}

// A strategy on trial, interrupted by others: the first step after each interruption has a larger error.
TEST(ErrorBudget, AHealthyLowRankCompressorInARaceIsLeftAlone) {
  for (const core::OptimizerFamily family : {core::OptimizerFamily::sgd, core::OptimizerFamily::adaptive}) {
    Bucket run{ErrorBudget({.names_none = true, .optimizers = family})};
    run.budget.run(compressed("powersgd", 16));
    EXPECT_EQ(run.until_found(300, [](int step) { return BucketLoss{.error = step % 5 == 0 ? 1.08 : 0.98}; }), -1);
    run.budget.run(compressed("powersgd", 16));
    EXPECT_EQ(run.until_found(300, {.error = 1.2}), ErrorBudget::kFirst) << "more than all of the gradient";
  }
}

TEST(ErrorBudget, ACompressorThatNoOneNamedMayLoseWhatIsNotFarFromWhatItDidInTrainings) {
  using core::OptimizerFamily;
  for (const OptimizerFamily family : {OptimizerFamily::sgd, OptimizerFamily::adaptive}) {
    const auto known = compress::known_traits();
    const double allowed = far_error(core::traits_of({"int3packed", 256}, known)->seen_error.with(family));
    ASSERT_GT(allowed, ErrorBudget::kLeast);
    for (const bool is_committed : {false, true}) {
      const auto until_found = [&](const char* codec, double parameter, double error, core::Excess* found = nullptr) {
        Bucket run{ErrorBudget({.names_none = true, .optimizers = family})};
        const core::Strategy strategy = compressed(codec, parameter);
        is_committed ? run.budget.commit(strategy) : run.budget.run(strategy);
        const int steps = run.until_found(100, {.error = error});
        if (found != nullptr) *found = run.found;
        return steps;
      };
      core::Excess found;
      EXPECT_EQ(until_found("int3packed", 256, 1.01 * allowed, &found),
                is_committed ? ErrorBudget::kSteps : ErrorBudget::kFirst);
      EXPECT_EQ(found, (core::Excess{.kind = Kind::error, .bucket = 1, .value = 1.01 * allowed, .allowed = allowed}));
      EXPECT_EQ(until_found("int3packed", 256, 0.99 * allowed), -1);
      EXPECT_EQ(until_found("int8", 256, 0.99 * ErrorBudget::kLeast), -1) << "however little was seen";
      EXPECT_EQ(until_found("int3packed", 64, 1), -1) << "no training had that block";
    }
  }
  Bucket named{ErrorBudget({.names_none = false})};
  named.budget.run(compressed("int4", 64));
  EXPECT_EQ(named.until_found(100, {.error = 1}), -1);
  Bucket given{ErrorBudget({.budget = 0.9, .names_none = true})};
  given.budget.run(compressed("int4", 64));
  EXPECT_EQ(given.until_found(100, {.error = 0.8}), -1);
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

// Changes of tens of per cent in some hundred steps, as in normal training, after a lower learning rate or with a
// larger batch.
TEST(ErrorBudget, AnErrorThatRisesWithATrainingIsLeftAlone) {
  for (const double begin : {0.1, 0.35, 0.6, 0.8}) {
    for (const int steps : {1, 50, 1'000}) {
      Bucket run{ErrorBudget({})};
      run.budget.commit(strategy_of(2, 3));
      const auto rising = [&](int step) {
        const double share = std::clamp((step - 100) / static_cast<double>(steps), 0.0, 1.0);
        const double end = std::min(1.4 * begin, std::sqrt(1 - (1 - begin * begin) / 2));
        return BucketLoss{.error = begin + share * (end - begin) + 0.02 * begin * std::sin(step)};
      };
      EXPECT_EQ(run.until_found(2'000, rising), -1) << begin << ", " << steps;
    }
  }
}

TEST(ErrorBudget, AnErrorThatJumpsIsFoundWithinSomeSteps) {
  for (const auto& [before, after] : {std::pair{0.1, 0.25}, {0.35, 0.75}, {0.8, 1.15}}) {
    Bucket run{ErrorBudget({})};
    run.budget.commit(strategy_of(2, 3));
    const auto jumping = [before = before, after = after](int step) {
      return BucketLoss{.error = step < 300 ? before : after};
    };
    const int found = run.until_found(600, jumping);
    EXPECT_GT(found, 300) << before;
    EXPECT_LE(found, 300 + ErrorBudget::kJump) << before;
    EXPECT_EQ(run.found.kind, Kind::error);
    EXPECT_GT(run.found.value, run.found.allowed);
  }
}

TEST(ErrorBudget, ABucketThatJumpedWithAnotherIsFoundOnceTheOtherWasReplaced) {
  const core::Strategy before = strategy_of(2, 3);
  for (const int replaced : {0, 1}) {
    Bucket run{ErrorBudget({})};
    run.budget.commit(before);
    EXPECT_GT(run.until_found(200, [](int step) { return BucketLoss{.error = step < 100 ? 0.3 : 0.8}; }), 100);
    core::Strategy after = before;
    after.buckets[static_cast<size_t>(replaced)].option = core::gather_payloads({.name = "topk"}, core::Place::device);
    run.budget.run(strategy_of(1, 3));
    EXPECT_EQ(run.until_found(50, {.error = 0.3}), -1);
    run.budget.commit(after);
    const int found = run.until_found(100, {.error = 0.8});
    EXPECT_EQ(found, replaced == 0 ? 1 : -1);
  }
}

TEST(ErrorBudget, AUsersBudgetSaysWhatIsTooMuchAlsoOfAJump) {
  Bucket run{ErrorBudget({.budget = 0.9})};
  run.budget.commit(strategy_of(2, 3));
  EXPECT_EQ(run.until_found(300, [](int step) { return BucketLoss{.error = step < 100 ? 0.1 : 0.8}; }), -1);
}

TEST(ErrorBudget, WhatIsBrokenIsFoundInOneStepAndComesFirst) {
  Bucket run{ErrorBudget({.budget = 0.5})};
  run.budget.run(strategy_of(2, 3));
  const auto breaking = [](int step) { return BucketLoss{.error = 0.9, .imbalance = step == 2 ? 0.002 : 1e-6}; };
  EXPECT_EQ(run.until_found(2, breaking), -1);
  run.budget.run(strategy_of(2, 3));
  EXPECT_EQ(run.until_found(100, breaking), 3);
  EXPECT_EQ(run.found, (core::Excess{.kind = Kind::broken, .bucket = 1, .value = 0.002, .allowed = 1e-3}));
}

// After a save and restore at any step, it finds the same.
TEST(ErrorBudget, ItsStateIsAllThatItKnows) {
  const auto loss = [](int step) {
    return std::vector<BucketLoss>{
        {.error = 0.3 + 0.1 * std::sin(step), .residual = 4 * std::exp2(step / 100.0), .gradient = 2}};
  };
  ErrorBudget whole({}), interrupted({});
  for (ErrorBudget* each : {&whole, &interrupted}) each->commit(strategy_of(1, 0));
  int found = 0;
  for (int step = 0; step < 900; ++step) {
    const core::Excess excess = whole.record(loss(step));
    EXPECT_EQ(interrupted.record(loss(step)), excess) << step;
    ErrorBudget restored({});
    restored.commit(strategy_of(1, 0));
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
  EXPECT_EQ(run.until_found(100, {.error = 1e-9}), -1);
  EXPECT_GT(run.until_found(100, {.error = 1.01 * ErrorBudget::kLeast}), 0);
}

TEST(ErrorBudget, AResidualThatRunsAwayIsFound) {
  Bucket run{ErrorBudget({})};
  run.budget.commit(strategy_of(2, 3));
  const int rand_k = run.until_found(200, [](int step) { return BucketLoss{.residual = 0.4 * step, .gradient = 1}; });
  EXPECT_NEAR(rand_k, 92, 5) << "above 30, by the median of 32 steps";
  EXPECT_EQ(run.found.kind, Kind::residual);
  EXPECT_EQ(run.found.bucket, 1);
  EXPECT_EQ(run.found.allowed, ErrorBudget::kMostResidual);

  run.budget.commit(strategy_of(2, 4));
  const auto doubling = [](int step) {
    return BucketLoss{.residual = step < 250 ? 6 : 6 * std::exp2((step - 250) / 80.0), .gradient = 1};
  };
  EXPECT_NEAR(run.until_found(600, doubling), 250 + 80 + 16 + 10, 30) << "when it has doubled";
  EXPECT_LT(run.found.value, 20);
}

// Residuals as measured for compressors that lose little or no accuracy.
TEST(ErrorBudget, ResidualsThatFindTheirLevelAreLeftAlone) {
  const auto levels = [](double at_50, double at_180, double at_430) {
    return [=](int step) {
      const double share = step < 180 ? (step - 50) / 130.0 : (step - 180) / 250.0;
      const double level = step < 50    ? at_50 * std::sqrt(step / 50.0)
                           : step < 180 ? at_50 + share * (at_180 - at_50)
                                        : at_180 + share * (at_430 - at_180);
      return BucketLoss{.error = 0.95, .residual = level, .gradient = 1};
    };
  };
  const double known[][3] = {{3.0, 3.5, 3.6}, {6.4, 15.8, 12.7}, {1.8, 2.5, 1.9}, {3.0, 6.8, 8.4}};
  for (const auto& [a, b, c] : known) {
    Bucket run{ErrorBudget({})};
    run.budget.commit(strategy_of(2, 3));
    EXPECT_EQ(run.until_found(460, levels(a, b, c)), -1) << a;
  }
  // A gradient that shrinks to a fifth at once, as after a lower learning rate, is no divergence.
  Bucket run{ErrorBudget({})};
  run.budget.commit(strategy_of(2, 3));
  const auto shrinking = [](int step) {
    const double gradient = step < 300 ? 5 : 1;
    const double residual = step < 300 ? 60 : 20 + 40 * std::exp2((300 - step) / 60.0);
    return BucketLoss{.error = 0.95, .residual = residual / gradient, .gradient = gradient};
  };
  EXPECT_EQ(run.until_found(900, shrinking), -1);
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
