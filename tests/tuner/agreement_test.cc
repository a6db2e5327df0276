// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/agreement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace gradtune::tuner {
namespace {

using Kind = Command::Kind;
constexpr uint64_t kStart = 0x0123456789abcdefULL, kOther = 0xfedcba9876543210ULL;

// Several ranks, step by step; they must receive the same.
class Ranks {
 public:
  explicit Ranks(int n, uint64_t last_rank_starts_with = kStart) {
    for (int r = 0; r < n; ++r) ranks.emplace_back(0, r + 1 == n ? last_rank_starts_with : kStart);
    locals.resize(static_cast<size_t>(n));
  }

  std::vector<core::Result<Verdict>> step(const Command& announced = {}) {
    ControlWord reduced;
    reduced.fill(-std::numeric_limits<double>::infinity());
    for (size_t r = 0; r < ranks.size(); ++r) {
      const ControlWord word = ranks[r].contribute(locals[r], r == 0 ? announced : Command{});
      for (size_t i = 0; i < word.size(); ++i) reduced[i] = std::max(reduced[i], word[i]);
    }
    std::vector<core::Result<Verdict>> verdicts;
    for (size_t r = 0; r < ranks.size(); ++r) verdicts.push_back(ranks[r].receive(locals[r], reduced));
    for (LocalStep& local : locals) ++local.step;
    return verdicts;
  }

  Verdict agreed_step(const Command& announced = {}) {
    auto verdicts = step(announced);
    for (size_t r = 0; r < ranks.size(); ++r) {
      EXPECT_TRUE(verdicts[r].ok()) << verdicts[r].error().message;
      EXPECT_EQ(verdicts[0].value().report, verdicts[r].value().report);
      EXPECT_EQ(verdicts[0].value().command, verdicts[r].value().command);
      EXPECT_EQ(verdicts[0].value().finite, verdicts[r].value().finite);
      EXPECT_EQ(ranks[0].epoch(), ranks[r].epoch());
      EXPECT_EQ(ranks[0].slot(), ranks[r].slot());
      EXPECT_EQ(ranks[0].identity(), ranks[r].identity());
    }
    return verdicts[0].value();
  }

  void expect_error_on_all(core::Error::Code code, const Command& announced = {}) {
    for (const auto& verdict : step(announced)) {
      ASSERT_FALSE(verdict.ok());
      EXPECT_EQ(code, verdict.error().code) << verdict.error().message;
    }
  }

  void all_prepared(int32_t slot, uint64_t hash) {
    for (Agreement& rank : ranks) rank.prepared(slot, hash);
  }

  std::vector<Agreement> ranks;
  std::vector<LocalStep> locals;
};

TEST(Agreement, NamesWhoComputesLongestAndWhatCollectivesTookWithoutWaiting) {
  Ranks job(3);
  job.locals[0] = {.step = 7, .step_ms = 100, .compute_ms = 60, .comm_ms = 55, .work_ms = 3, .rank = 0};
  job.locals[1] = {.step = 7, .step_ms = 100, .compute_ms = 75.5, .comm_ms = 30.25, .work_ms = 4.5, .rank = 1};
  job.locals[2] = {.step = 7, .step_ms = 100, .compute_ms = 70, .comm_ms = 0, .rank = 2};  // it took part in none
  job.agreed_step();
  const core::StepReport report = job.agreed_step().report;
  EXPECT_EQ(report.slowest_rank, 1);
  EXPECT_EQ(report.comm_ms, 30.25);
  EXPECT_EQ(report.work_ms, 4.5);
  for (LocalStep& local : job.locals) local.comm_ms = 0;
  EXPECT_EQ(job.agreed_step().report.comm_ms, 0);
}

TEST(Agreement, ReportsTheTimesOfTheStepBefore) {
  Ranks job(3);
  job.locals[0] = {.step = 7, .step_ms = 100, .compute_ms = 70};
  job.locals[1] = {.step = 7, .step_ms = 103, .compute_ms = 60};
  job.locals[2] = {.step = 7, .step_ms = 101, .compute_ms = 75};
  job.agreed_step();
  const core::StepReport report = job.agreed_step().report;
  EXPECT_EQ(8, report.step);
  EXPECT_EQ(101.5, report.step_ms);
  EXPECT_EQ(75, report.compute_ms_max);
  EXPECT_EQ(60, report.compute_ms_min);
  EXPECT_TRUE(report.finite && !report.excluded && report.prepared && !report.failed);
}

// On a link with a delay, each of two ranks in turn waits for the other. Both make two steps in the same time.
TEST(Agreement, AStepOfRanksThatAreADelayApartTakesAsLongAsForBothTogether) {
  Ranks job(2);
  for (const bool is_first_ahead : {true, false, true}) {
    job.locals[0].step_ms = is_first_ahead ? 30 : 6;
    job.locals[1].step_ms = is_first_ahead ? 6 : 30;
    EXPECT_EQ(18, job.agreed_step().report.step_ms);
  }
}

TEST(Agreement, ExcludesWhatHasNoTime) {
  for (double no_time : {std::nan(""), -1.0, std::numeric_limits<double>::infinity()}) {
    Ranks job(2);
    job.agreed_step();
    job.locals[0] = {.step = 1, .step_ms = 100, .compute_ms = 70};
    job.locals[1] = {.step = 1, .step_ms = no_time, .compute_ms = no_time};
    const core::StepReport report = job.agreed_step().report;
    EXPECT_TRUE(report.excluded);
    EXPECT_EQ(100, report.step_ms);
    EXPECT_EQ(70, report.compute_ms_max);
    EXPECT_EQ(0, report.compute_ms_min);
  }
  EXPECT_TRUE(Ranks(2).agreed_step().report.excluded) << "there is no step before the first";
}

TEST(Agreement, TellsNonFiniteAtOnceAndReportsItWithItsStep) {
  Ranks job(2);
  job.agreed_step();
  job.locals[1].finite = false;
  Verdict verdict = job.agreed_step();
  EXPECT_FALSE(verdict.finite);
  EXPECT_TRUE(verdict.report.finite);
  job.locals[1].finite = true;
  verdict = job.agreed_step();
  EXPECT_TRUE(verdict.finite);
  EXPECT_FALSE(verdict.report.finite);
}

TEST(Agreement, OneRanksExclusionCountsForAll) {
  Ranks job(3);
  job.agreed_step();
  job.locals[2].excluded = true;
  EXPECT_TRUE(job.agreed_step().report.excluded);
}

TEST(Agreement, CommandsArriveAsAnnounced) {
  const int64_t kLargest = int64_t{1} << 30;
  for (const Command& command :
       {Command{}, Command{Kind::prepare, 5, 123'456}, Command{Kind::prepare, INT32_MAX, kLargest},
        Command{Kind::run, 0, 0}, Command{Kind::drop, 9, 0}, Command{Kind::commit, 0, 0}}) {
    EXPECT_EQ(command, Ranks(3).agreed_step(command).command);
  }
}

TEST(Agreement, WhatIsAnnouncedInAStepIsInForceFromTheNext) {
  Ranks job(2);
  job.all_prepared(1, kOther);
  job.agreed_step();
  EXPECT_EQ(1, job.ranks[0].epoch());
  job.agreed_step({Kind::run, 1, 0});
  EXPECT_EQ(1, job.ranks[0].slot());
  EXPECT_EQ(2, job.ranks[0].epoch());
  EXPECT_EQ(0, job.agreed_step({Kind::commit, 1, 0}).report.slot == 1 ? 1 : 0) << "it speaks of the step before";
  EXPECT_EQ(1, job.agreed_step().report.slot);
  EXPECT_EQ(3, job.ranks[0].epoch());
}

TEST(Agreement, ASlotIsReadyOnceAllRanksPreparedIt) {
  Ranks job(3);
  EXPECT_FALSE(job.agreed_step({Kind::prepare, 4, 100}).report.prepared);
  job.ranks[0].prepared(4, kOther);
  job.ranks[2].prepared(4, kOther);
  EXPECT_FALSE(job.step()[0].value().report.prepared);
  job.ranks[1].prepared(4, kOther);
  EXPECT_TRUE(job.agreed_step().report.prepared);
  job.agreed_step({Kind::run, 4, 0});
  EXPECT_EQ(4, job.ranks[1].slot());
}

TEST(Agreement, AFailureOnOneRankEmptiesTheSlotOnAll) {
  Ranks job(3);
  job.agreed_step({Kind::prepare, 4, 100});
  job.ranks[0].prepared(4, kOther);
  job.ranks[1].prepared(4, std::nullopt);
  job.ranks[2].prepared(4, kOther);
  core::StepReport report = job.agreed_step({Kind::drop, 8, 0}).report;
  EXPECT_TRUE(report.failed && !report.prepared);
  report = job.agreed_step({Kind::drop, 4, 0}).report;
  EXPECT_TRUE(!report.failed && report.prepared);
  EXPECT_EQ(Command{}, job.agreed_step({Kind::run, 4, 0}).command);
}

TEST(Agreement, ARunIsCarriedOutOnAllRanksOrOnNone) {
  for (const bool is_in_time : {true, false}) {
    Ranks job(2);
    job.agreed_step({Kind::prepare, 4, 100});
    job.ranks[0].prepared(4, kOther);
    if (is_in_time) job.ranks[1].prepared(4, kOther);
    for (const auto& verdict : job.step({Kind::run, 4, 0})) {
      EXPECT_EQ(is_in_time ? Kind::run : Kind::keep, verdict.value().command.kind)
          << "announced together with the answers";
    }
    for (const Agreement& rank : job.ranks) {
      EXPECT_EQ(is_in_time ? 4 : 0, rank.slot());
      EXPECT_EQ(is_in_time ? 2 : 1, rank.epoch());
    }
  }
}

TEST(Agreement, AnAnswerToWhatWasTakenBackIsIgnored) {
  for (const bool drops : {true, false}) {
    Ranks job(2);
    job.agreed_step({Kind::prepare, 4, 100});
    job.ranks[0].prepared(4, kOther);
    if (drops) {
      EXPECT_TRUE(job.step({Kind::drop, 4, 0})[0].value().report.prepared);
    }
    EXPECT_FALSE(job.step({Kind::prepare, 5, 100})[0].value().report.prepared);
    job.ranks[1].prepared(4, std::nullopt);
    job.all_prepared(5, kOther);
    EXPECT_TRUE(job.agreed_step().report.prepared);
    EXPECT_EQ(Command{}, job.agreed_step({Kind::run, 4, 0}).command);
  }
}

TEST(Agreement, RefusesOnAllRanksWhatCanNotBeCarriedOut) {
  const Command unknown{static_cast<Kind>(9), 0, 0};
  for (const Command& command : {Command{Kind::drop, 0, 0}, Command{Kind::prepare, 0, 10}, unknown}) {
    Ranks(2).expect_error_on_all(core::Error::Code::corrupt, command);
  }
}

TEST(Agreement, ARankThatDiffersIsFoundByAllInThatStep) {
  for (int bit = 0; bit < 64; ++bit) Ranks(3, kStart ^ (1ULL << bit)).expect_error_on_all(core::Error::Code::mismatch);

  Ranks job(3);
  job.agreed_step();
  job.locals[2].step = 5;
  job.expect_error_on_all(core::Error::Code::mismatch);
}

TEST(Agreement, ARankThatReceivedAnotherStrategyIsFoundAsSoonAsTwoHaveAnswered) {
  Ranks job(3);
  job.agreed_step({Kind::prepare, 4, 100});
  job.ranks[2].prepared(4, kOther + 1);
  EXPECT_TRUE(job.step()[0].ok());
  job.ranks[0].prepared(4, kOther);
  EXPECT_NE(job.ranks[0].identity(), job.ranks[2].identity());
  job.expect_error_on_all(core::Error::Code::mismatch);
}

TEST(Agreement, RefusesAWordThatIsNotFinite) {
  Agreement rank(0, kStart);
  ControlWord word = rank.contribute({}, {});
  for (size_t i = 0; i < word.size(); ++i) {
    for (double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
      ControlWord damaged = word;
      damaged[i] = bad;
      const auto verdict = rank.receive({}, damaged);
      ASSERT_FALSE(verdict.ok());
      EXPECT_EQ(core::Error::Code::corrupt, verdict.error().code);
    }
  }
}

TEST(Agreement, TellsWhatHoldsOnSomeRankInRounds) {
  Ranks ranks(3);
  EXPECT_EQ(ranks.agreed_step().round, RoundState{});
  ranks.locals[1].round = {.has_updates = true};
  EXPECT_EQ(ranks.agreed_step().round, RoundState{.has_updates = true});
  ranks.locals[2].round = {.goes_on = true};
  EXPECT_EQ(ranks.agreed_step().round, (RoundState{.has_updates = true, .goes_on = true}));
}

TEST(Agreement, AStepOfDifferentNumbersOfUpdatesIsExcluded) {
  Ranks ranks(3);
  ranks.agreed_step();
  for (LocalStep& local : ranks.locals) local.updates = 4;
  Verdict verdict = ranks.agreed_step();
  EXPECT_FALSE(verdict.report.excluded);
  EXPECT_EQ(verdict.updates, 4);
  ranks.locals[1].updates = 3;
  verdict = ranks.agreed_step();
  EXPECT_TRUE(verdict.report.excluded);
  EXPECT_EQ(verdict.updates, 4);
}

TEST(Agreement, TheWorstExcessOfAllRanksIsReported) {
  Ranks ranks(4);
  using core::Excess;
  EXPECT_EQ(ranks.agreed_step().report.excess, Excess());
  ranks.locals[1].excess = {.kind = Excess::Kind::error, .bucket = 12, .value = 0.75, .allowed = 0.5};
  ranks.locals[2].excess = {.kind = Excess::Kind::residual, .bucket = 3, .value = 90, .allowed = 30};
  ranks.locals[3].excess = {.kind = Excess::Kind::error, .bucket = 700, .value = 0.96, .allowed = 0.9};
  Excess worst = ranks.agreed_step().report.excess;
  const auto expect = [&](const Excess& wanted) {
    EXPECT_EQ(worst.kind, wanted.kind);
    EXPECT_EQ(worst.bucket, wanted.bucket);
    EXPECT_NEAR(worst.value, wanted.value, 2e-6);
    EXPECT_NEAR(worst.allowed, wanted.allowed, 1e-4 * wanted.allowed);
    EXPECT_LT(worst.allowed, worst.value);
  };
  expect({.kind = Excess::Kind::residual, .bucket = 3, .value = 90, .allowed = 30});
  ranks.locals[2].excess = {};
  worst = ranks.agreed_step().report.excess;
  expect({.kind = Excess::Kind::error, .bucket = 12, .value = 0.75, .allowed = 0.5});
  ranks.locals[1].excess = {};
  worst = ranks.agreed_step().report.excess;
  expect({.kind = Excess::Kind::error, .bucket = 700, .value = 0.96, .allowed = 0.9});
  ranks.locals[0].excess = {.kind = Excess::Kind::residual, .bucket = 3, .value = 500, .allowed = 1};
  ranks.locals[1].excess = {.kind = Excess::Kind::broken, .bucket = 100'000, .value = 0.002, .allowed = 1e-3};
  worst = ranks.agreed_step().report.excess;
  expect({.kind = Excess::Kind::broken, .bucket = 100'000, .value = 0.002, .allowed = 1e-3});
}

// One bucket per tensor, in a model with very many tensors.
TEST(Agreement, ABucketKeepsItsNumberHoweverManyThereAre) {
  for (const int32_t bucket : {32'766, 32'767, 32'768, 50'000, 1 << 20, (1 << 26) - 2}) {
    Ranks ranks(2);
    ranks.locals[0].excess = {.kind = core::Excess::Kind::error, .bucket = bucket, .value = 0.75, .allowed = 0.5};
    ranks.locals[1].excess = {.kind = core::Excess::Kind::error, .bucket = 2, .value = 0.5, .allowed = 0.4};
    EXPECT_EQ(ranks.agreed_step().report.excess, ranks.locals[0].excess);
  }
}

TEST(Agreement, AnExcessBeyondAllBoundsStillSaysThatThereIsOne) {
  Ranks ranks(2);
  ranks.locals[1].excess = {.kind = core::Excess::Kind::residual, .bucket = 1 << 20, .value = 1e300, .allowed = 1e-300};
  const core::Excess found = ranks.agreed_step().report.excess;
  EXPECT_EQ(found.kind, core::Excess::Kind::residual);
  EXPECT_GT(found.value, 500);
  EXPECT_LT(found.allowed, found.value);
}

TEST(Agreement, AnExcessThatIsNoneIsRefused) {
  Ranks ranks(2);
  LocalStep over = ranks.locals[0];
  over.excess = {.kind = core::Excess::Kind::error, .bucket = 12, .value = 0.75, .allowed = 0.5};
  for (const LocalStep& local : {ranks.locals[0], over}) {
    const ControlWord good = ranks.ranks[0].contribute(local, {});
    for (const size_t at : {size_t{22}, size_t{28}}) {
      for (const double bad : {-1.0, 0.5, 3.0, good[at] + 0x1p28, 0x1p53, 0x1p60}) {
        ControlWord word = good;
        word[at] = bad;
        const auto verdict = ranks.ranks[0].receive(local, word);
        ASSERT_FALSE(verdict.ok()) << at << " " << bad;
        EXPECT_EQ(verdict.error().code, core::Error::Code::corrupt);
      }
    }
  }
}

}  // namespace
}  // namespace gradtune::tuner
