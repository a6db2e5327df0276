// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/confirm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <vector>

#include "tests/tuner/simulated_job.h"
#include "tuner/statistics.h"

namespace gradtune::tuner {
namespace {

constexpr int32_t kWinner = 5, kBaseline = 0;

// `step_ms` has the step times of a slot's blocks in turn; the baselines have the lower slots.
Claim claim_of(const std::map<int32_t, std::vector<double>>& step_ms) {
  std::vector<int32_t> baselines;
  for (const auto& [slot, times] : step_ms) {
    if (slot != kWinner) baselines.push_back(slot);
  }
  Confirmation confirmation(kWinner, baselines, static_cast<int>(step_ms.at(kWinner).size()), 0.05, core::Rng(1));
  std::vector<Score> blocks;
  std::map<int32_t, size_t> next;
  for (int32_t slot : confirmation.next_blocks()) blocks.push_back({slot, step_ms.at(slot)[next[slot]++], 4});
  confirmation.score(blocks);
  return confirmation.claim();
}
Claim claim_of(const std::vector<double>& winner_ms, const std::vector<double>& baseline_ms) {
  return claim_of({{kWinner, winner_ms}, {kBaseline, baseline_ms}});
}

std::vector<double> times_of(double ms, const std::vector<double>& log_ratios) {
  std::vector<double> times;
  for (const double log_ratio : log_ratios) times.push_back(ms * std::exp(log_ratio));
  return times;
}

TEST(Confirmation, RunsPairsInRandomOrder) {
  const std::vector<int32_t> slots = Confirmation(kWinner, {kBaseline}, 12, 0.05, core::Rng(3)).next_blocks();
  ASSERT_EQ(24, slots.size());
  int winner_first = 0;
  for (size_t pair = 0; pair < 12; ++pair) {
    EXPECT_EQ(kWinner + kBaseline, slots[2 * pair] + slots[2 * pair + 1]);
    EXPECT_NE(slots[2 * pair], slots[2 * pair + 1]);
    winner_first += slots[2 * pair] == kWinner ? 1 : 0;
  }
  EXPECT_THAT(winner_first, testing::AllOf(testing::Gt(1), testing::Lt(11)));
  EXPECT_EQ(slots, Confirmation(kWinner, {kBaseline}, 12, 0.05, core::Rng(3)).next_blocks());
}

// Computed by hand from the 63 means of subsets of six log-ratios. 64 * 5 % gives the third lowest mean as the lower
// bound, behind 0.1 and the mean of 0.1 and 0.15. 64 * 2.5 % gives the highest one as the upper bound.
TEST(Confirmation, ClaimsTheMeanOfThePairsWithItsBounds) {
  const Claim claim = claim_of(std::vector<double>(6, 100), times_of(100, {0.1, 0.2, 0.3, 0.2, 0.25, 0.15}));
  EXPECT_TRUE(claim.confirmed);
  EXPECT_EQ(6, claim.pairs);
  EXPECT_EQ(kBaseline, claim.baseline);
  EXPECT_NEAR(100, claim.committed_ms, 1e-9);
  EXPECT_NEAR(100 * std::exp(0.2), claim.baseline_ms, 1e-9);
  EXPECT_NEAR(1 - claim.committed_ms / claim.baseline_ms, claim.gain, 1e-12);
  EXPECT_NEAR(1 - std::exp(-0.15), claim.gain_low, 1e-9);
  EXPECT_NEAR(1 - std::exp(-0.3), claim.gain_high, 1e-9);
}

// At 5 % with six pairs 3 of 64 sign patterns may do as well: the given one, and two others.
TEST(Confirmation, TheOneSidedBoundDecides) {
  const auto is_confirmed = [](const std::vector<double>& log_ratios) {
    const Claim claim = claim_of(std::vector<double>(log_ratios.size(), 100), times_of(100, log_ratios));
    EXPECT_EQ(claim.confirmed, claim.gain_low > 0) << "what is shown beside a gain is what decided";
    return claim.confirmed;
  };
  EXPECT_TRUE(is_confirmed({.001, .001, .001, .001, .001, .001}));
  EXPECT_FALSE(is_confirmed({0, 0, 0, 0, 0, 0}));
  EXPECT_FALSE(is_confirmed({-.1, -.1, -.1, -.1, -.1, -.1}));
  EXPECT_TRUE(is_confirmed({.2, .2, .2, .2, .2, -.1}));
  EXPECT_FALSE(is_confirmed({.2, .2, .2, .2, .2, -.2})) << "one alone of six might as well be another";
  EXPECT_FALSE(is_confirmed({.2, .2, .2, .2})) << "one in 16, whatever was seen";
}

// This case fooled Student's t: load hits three pairs, all by chance in the same direction (probability one in
// eight), and there is hardly any other noise.
TEST(Confirmation, AFewPairsThatLoadHitProveNothing) {
  EXPECT_FALSE(claim_of(std::vector<double>(6, 100), times_of(100, {.7, .7, .7, .001, -.001, -.002})).confirmed);
}

TEST(Confirmation, TheWinnerHasToBeFasterThanEitherBaseline) {
  const std::vector<double> winner(8, 100), slower = times_of(100, {.3, .31, .32, .33, .34, .35, .36, .37}),
                                            alike = times_of(100, {.01, -.01, .02, -.02, .03, -.03, .04, -.04}),
                                            closer = times_of(100, {.1, .11, .12, .13, .14, .15, .16, .17});
  EXPECT_TRUE(claim_of({{kWinner, winner}, {0, slower}}).confirmed);
  EXPECT_FALSE(claim_of({{kWinner, winner}, {0, slower}, {1, alike}}).confirmed);
  EXPECT_FALSE(claim_of({{kWinner, winner}, {0, alike}, {1, slower}}).confirmed);
  const Claim claim = claim_of({{kWinner, winner}, {0, slower}, {1, closer}});
  EXPECT_TRUE(claim.confirmed);
  EXPECT_EQ(1, claim.baseline) << "the faster one";
  EXPECT_NEAR(1 - std::exp(-0.135), claim.gain, 1e-9);
  EXPECT_GT(claim.gain_low, 0.09);
  EXPECT_LT(claim.gain_high, 0.16);
}

TEST(Confirmation, WithTwoBaselinesThereAreThreeBlocksInEachPair) {
  const std::vector<int32_t> slots = Confirmation(kWinner, {0, 1}, 8, 0.05, core::Rng(3)).next_blocks();
  ASSERT_EQ(24, slots.size());
  for (size_t begin = 0; begin < 24; begin += 3) {
    EXPECT_THAT(std::vector<int32_t>(slots.begin() + static_cast<ptrdiff_t>(begin),
                                     slots.begin() + static_cast<ptrdiff_t>(begin) + 3),
                testing::UnorderedElementsAre(kWinner, 0, 1));
  }
}

TEST(Confirmation, APairThatIsNotCompleteIsRunAgain) {
  Confirmation confirmation(kWinner, {kBaseline}, 4, 0.05, core::Rng(1));
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

TEST(AllowedError, LeavesLaterConfirmationsPairsThatProveSomething) {
  for (int earlier = 0; earlier < 100; ++earlier) {
    EXPECT_LT(fewest_signed(allowed_error(earlier)), most_pairs(allowed_error(earlier)) + 1) << earlier;
  }
  EXPECT_EQ(12, most_pairs(allowed_error(0)));
  EXPECT_EQ(12, most_pairs(allowed_error(2)));
  EXPECT_EQ(14, most_pairs(allowed_error(5)));
}

int pairs(double effect, double noise, double error = 0.05, size_t baselines = 1) {
  return pairs_for({.slot = 1, .effect = effect, .noise = noise, .rounds = 4}, error, baselines);
}

TEST(Pairs, AsManyAsThePowerNeeds) {
  EXPECT_EQ(6, pairs(2.0, 0.05));
  EXPECT_EQ(6, pairs(0.05, 0.0));
  int before = 12;
  for (double effect = 0.05; effect < 0.5; effect += 0.01) {
    const int now = pairs(effect, 0.07);
    EXPECT_LE(now, before) << "a larger effect needs no more";
    EXPECT_THAT(now, testing::AnyOf(6, 8, 10, 12));
    const double power_of_fewer = now == 6 ? 0 : power(now - 2, effect - 0.035, 0.07, 0.05);
    EXPECT_LT(power_of_fewer, 0.85);
    before = now;
  }
  EXPECT_EQ(6, before);
}

TEST(Pairs, AsManyAsAnErrorAndTheBaselinesTake) {
  EXPECT_EQ(8, pairs(2.0, 0.05, 0.04, 2));
  EXPECT_EQ(8, pairs(2.0, 0.05, 0.005));
  EXPECT_EQ(10, pairs(2.0, 0.05, 0.002));
  EXPECT_EQ(15, pairs(2.0, 0.05, 0.0002));
  for (const double error : {0.05, 0.005, 0.0002}) {
    for (const size_t baselines : {1, 2}) EXPECT_LE(fewest_pairs(error, baselines), pairs(2.0, 0.05, error, baselines));
  }
  EXPECT_EQ(6, fewest_pairs(0.05, 1));
  EXPECT_EQ(7, fewest_pairs(0.04, 2));
}

TEST(Pairs, TwelveForAGainThatNoNumberOfPairsShows) {
  EXPECT_EQ(12, pairs(0.021, 0.07));
  EXPECT_EQ(12, pairs(0.011, 0.07));
  EXPECT_EQ(6, pairs(0.015, 0.002));
}

// Share of confirmations at a true gain, and the mean error of the claim, with noise kReference.
struct Outcomes {
  double confirmed = 0, low_holds = 0, high_holds = 0, bias = 0;
};
Outcomes outcomes(double cv, double gain, int pairs, int runs) {
  Outcomes outcomes;
  for (int run = 0; run < runs; ++run) {
    NoiseProcess process({.cv = cv, .spikes = 0.02, .drift = 0.08}, core::Rng(static_cast<uint64_t>(run)));
    Confirmation confirmation(kWinner, {kBaseline}, pairs, 0.05, core::Rng(static_cast<uint64_t>(run)).fork("order"));
    std::vector<Score> blocks;
    for (int32_t slot : confirmation.next_blocks())
      blocks.push_back(process.block(slot, slot == kWinner ? 1 - gain : 1));
    confirmation.score(blocks);
    const Claim claim = confirmation.claim();
    outcomes.confirmed += claim.confirmed ? 1.0 / runs : 0;
    outcomes.low_holds += claim.gain_low <= gain ? 1.0 / runs : 0;
    outcomes.high_holds += gain <= claim.gain_high ? 1.0 / runs : 0;
    outcomes.bias += (claim.gain - gain) / runs;
  }
  return outcomes;
}

TEST(Confirmation, FalseCommitsStayAtFivePercent) {
  const int kRuns = 2000;
  const double tolerance = 3 * std::sqrt(0.05 * 0.95 / kRuns);
  for (double cv : {0.03, 0.05, 0.10}) {
    for (int pairs : {6, 12}) {
      const Outcomes same = outcomes(cv, 0, pairs, kRuns);
      EXPECT_LE(same.confirmed, 0.05 + tolerance) << cv << ", " << pairs << " pairs";
      EXPECT_GE(same.low_holds, 0.95 - tolerance);
      EXPECT_GE(same.high_holds, 0.975 - tolerance);
      EXPECT_NEAR(0, same.bias, 0.005);
    }
  }
}

// The reference's table; a little more power is fine.
TEST(Confirmation, PowerIsThatOfTheReference) {
  const int kRuns = 1000;
  struct Cell {
    double cv, gain;
    int pairs;
    double power;
  };
  for (const Cell& cell : {Cell{0.03, 0.02, 12, 0.454}, Cell{0.03, 0.05, 8, 0.887}, Cell{0.05, 0.05, 6, 0.583},
                           Cell{0.05, 0.05, 12, 0.862}, Cell{0.05, 0.10, 6, 0.949}, Cell{0.10, 0.10, 12, 0.922}}) {
    const double found = outcomes(cell.cv, cell.gain, cell.pairs, kRuns).confirmed;
    EXPECT_GE(found, cell.power - 3 * std::sqrt(0.25 / kRuns)) << cell.cv << ", " << cell.gain << ", " << cell.pairs;
    EXPECT_LE(found, cell.power + 0.12) << cell.cv << ", " << cell.gain << ", " << cell.pairs;
  }
}

}  // namespace
}  // namespace gradtune::tuner
