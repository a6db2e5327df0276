// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/confirm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/tuner/simulated_job.h"

namespace gradtune::tuner {
namespace {

constexpr int32_t kWinner = 5, kBaseline = 0;

Claim claim_of(const std::vector<double>& winner_ms, const std::vector<double>& baseline_ms) {
  Confirmation confirmation(kWinner, kBaseline, static_cast<int>(winner_ms.size()), 0.05, core::Rng(1));
  std::vector<Score> blocks;
  size_t winners = 0, baselines = 0;
  for (int32_t slot : confirmation.next_blocks()) {
    blocks.push_back({slot, slot == kWinner ? winner_ms[winners++] : baseline_ms[baselines++], 4});
  }
  confirmation.score(blocks);
  return confirmation.claim();
}

TEST(Confirmation, RunsPairsInRandomOrder) {
  const std::vector<int32_t> slots = Confirmation(kWinner, kBaseline, 12, 0.05, core::Rng(3)).next_blocks();
  ASSERT_EQ(24, slots.size());
  int winner_first = 0;
  for (size_t pair = 0; pair < 12; ++pair) {
    EXPECT_EQ(kWinner + kBaseline, slots[2 * pair] + slots[2 * pair + 1]);
    EXPECT_NE(slots[2 * pair], slots[2 * pair + 1]);
    winner_first += slots[2 * pair] == kWinner ? 1 : 0;
  }
  EXPECT_THAT(winner_first, testing::AllOf(testing::Gt(1), testing::Lt(11)));
  EXPECT_EQ(slots, Confirmation(kWinner, kBaseline, 12, 0.05, core::Rng(3)).next_blocks());
}

// Worked by hand: log-ratios .1, .2, .3, .2; mean .2, standard deviation sqrt(.02 / 3), t(3) 2.353 and 3.182.
TEST(Confirmation, ClaimsTheMeanOfThePairsWithItsInterval) {
  const std::vector<double> winner(4, 100);
  std::vector<double> baseline;
  for (double log_ratio : {0.1, 0.2, 0.3, 0.2}) baseline.push_back(100 * std::exp(log_ratio));
  const Claim claim = claim_of(winner, baseline);
  const double t = 3.18244630528, error = std::sqrt(0.02 / 3) / 2;
  EXPECT_TRUE(claim.confirmed);
  EXPECT_EQ(4, claim.pairs);
  EXPECT_NEAR(100, claim.winner_ms, 1e-9);
  EXPECT_NEAR(100 * std::exp(0.2), claim.baseline_ms, 1e-9);
  EXPECT_NEAR(1 - claim.winner_ms / claim.baseline_ms, claim.gain, 1e-12);
  EXPECT_NEAR(1 - std::exp(-(0.2 - t * error)), claim.gain_low, 1e-9);
  EXPECT_NEAR(1 - std::exp(-(0.2 + t * error)), claim.gain_high, 1e-9);
}

TEST(Confirmation, TheOneSidedBoundDecides) {
  EXPECT_TRUE(claim_of({100, 100, 100, 100}, {100.1, 100.1, 100.1, 100.1}).confirmed);
  EXPECT_FALSE(claim_of({100, 100, 100, 100}, {100, 100, 100, 100}).confirmed);
  EXPECT_FALSE(claim_of({100, 100, 100, 100}, {99, 99, 99, 99}).confirmed);
  // Mean m and standard deviation 1: confirmed from m = 2.353 / 2 on.
  const auto spread = [](double mean) {
    std::vector<double> baseline;
    for (double z : {-1.0, -1.0, 1.0, 1.0}) baseline.push_back(100 * std::exp(0.01 * (mean + z * std::sqrt(3.0 / 4))));
    return claim_of({100, 100, 100, 100}, baseline).confirmed;
  };
  EXPECT_FALSE(spread(1.17));
  EXPECT_TRUE(spread(1.18));
}

TEST(Confirmation, APairThatIsNotCompleteIsRunAgain) {
  Confirmation confirmation(kWinner, kBaseline, 4, 0.05, core::Rng(1));
  std::vector<Score> blocks;
  for (int32_t slot : confirmation.next_blocks()) blocks.push_back({slot, 100.0, 4});
  blocks[3].step_ms.reset();
  blocks[6].step_ms.reset();
  confirmation.score(blocks);
  EXPECT_FALSE(confirmation.is_over());
  EXPECT_EQ(0.5, confirmation.progress(0));
  EXPECT_EQ(4, confirmation.next_blocks().size());
  confirmation.score({{kBaseline, 100.0, 4}, {kWinner, 100.0, 4}, {kWinner, 100.0, 4}, {kBaseline, 100.0, 4}});
  EXPECT_TRUE(confirmation.is_over());
  EXPECT_EQ(4, confirmation.claim().pairs);
}

TEST(AllowedError, IsAtMostFivePercentOverAllConfirmationsOfARun) {
  double sum = 0;
  for (int earlier = 0; earlier < 1'000; ++earlier) {
    EXPECT_GT(allowed_error(earlier), 0);
    EXPECT_LE(allowed_error(earlier + 1), allowed_error(earlier));
    sum += allowed_error(earlier);
  }
  EXPECT_LE(sum, 0.05 + 1e-6);
}

TEST(Pairs, AsManyAsThePowerNeeds) {
  const auto pairs = [](double effect, double noise) {
    return pairs_for({.slot = 1, .effect = effect, .noise = noise, .rounds = 4}, 0.05);
  };
  EXPECT_EQ(4, pairs(2.0, 0.05));
  EXPECT_EQ(4, pairs(0.05, 0.0));
  int before = 12;
  for (double effect = 0.05; effect < 0.5; effect += 0.01) {
    const int now = pairs(effect, 0.07);
    EXPECT_LE(now, before) << "a larger effect needs no more";
    EXPECT_THAT(now, testing::AnyOf(4, 6, 8, 12));
    const double power_of_fewer = now == 4 ? 0 : power(now == 12 ? 8 : now - 2, effect - 0.035, 0.07, 0.05);
    EXPECT_LT(power_of_fewer, 0.85);
    before = now;
  }
  EXPECT_EQ(4, before);
}

TEST(Pairs, TwelveForAGainThatNoNumberOfPairsShows) {
  const auto pairs = [](double effect, double noise) {
    return pairs_for({.slot = 1, .effect = effect, .noise = noise, .rounds = 4}, 0.05);
  };
  EXPECT_EQ(12, pairs(0.021, 0.07));
  EXPECT_EQ(12, pairs(0.011, 0.07));
  EXPECT_EQ(4, pairs(0.015, 0.002));
}

// Share of confirmations at a true gain, and how far the claim is off on average; noise of the reference, section 4.
struct Outcomes {
  double confirmed = 0, covered = 0, bias = 0;
};
Outcomes outcomes(double cv, double gain, int pairs, int runs) {
  Outcomes outcomes;
  for (int run = 0; run < runs; ++run) {
    NoiseProcess process({.cv = cv, .spikes = 0.02, .drift = 0.08}, core::Rng(static_cast<uint64_t>(run)));
    Confirmation confirmation(kWinner, kBaseline, pairs, 0.05, core::Rng(static_cast<uint64_t>(run)).fork("order"));
    std::vector<Score> blocks;
    for (int32_t slot : confirmation.next_blocks())
      blocks.push_back(process.block(slot, slot == kWinner ? 1 - gain : 1));
    confirmation.score(blocks);
    const Claim claim = confirmation.claim();
    outcomes.confirmed += claim.confirmed ? 1.0 / runs : 0;
    outcomes.covered += claim.gain_low <= gain && gain <= claim.gain_high ? 1.0 / runs : 0;
    outcomes.bias += (claim.gain - gain) / runs;
  }
  return outcomes;
}

TEST(Confirmation, FalseCommitsStayAtFivePercent) {
  const int kRuns = 2000;
  const double tolerance = 3 * std::sqrt(0.05 * 0.95 / kRuns);
  for (double cv : {0.03, 0.05, 0.10}) {
    for (int pairs : {4, 12}) {
      const Outcomes same = outcomes(cv, 0, pairs, kRuns);
      EXPECT_LE(same.confirmed, 0.05 + tolerance) << cv << ", " << pairs << " pairs";
      EXPECT_NEAR(0.95, same.covered, tolerance);
      EXPECT_NEAR(0, same.bias, 0.005);
    }
  }
}

// The reference's table; a little more power is no harm.
TEST(Confirmation, PowerIsThatOfTheReference) {
  const int kRuns = 1000;
  struct Cell {
    double cv, gain;
    int pairs;
    double power;
  };
  for (const Cell& cell : {Cell{0.03, 0.02, 12, 0.454}, Cell{0.03, 0.05, 8, 0.887}, Cell{0.05, 0.05, 4, 0.404},
                           Cell{0.05, 0.05, 12, 0.862}, Cell{0.05, 0.10, 6, 0.949}, Cell{0.10, 0.10, 12, 0.922}}) {
    const double found = outcomes(cell.cv, cell.gain, cell.pairs, kRuns).confirmed;
    EXPECT_GE(found, cell.power - 3 * std::sqrt(0.25 / kRuns)) << cell.cv << ", " << cell.gain << ", " << cell.pairs;
    EXPECT_LE(found, cell.power + 0.12) << cell.cv << ", " << cell.gain << ", " << cell.pairs;
  }
}

}  // namespace
}  // namespace gradtune::tuner
