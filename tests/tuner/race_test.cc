// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/race.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <vector>

#include "tests/tuner/simulated_job.h"
#include "tuner/statistics.h"

namespace gradtune::tuner {
namespace {

using core::Fidelity;
using testing::UnorderedElementsAre;

std::vector<Race::Arm> arms(int n) {
  std::vector<Race::Arm> arms;
  for (int32_t slot = 1; slot <= n; ++slot) arms.push_back({.slot = slot, .fidelity = Fidelity::half, .buckets = 1});
  return arms;
}
constexpr Race::Arm kBaseline{.slot = 0, .fidelity = Fidelity::half, .buckets = 1};

// Runs a round in which each slot takes as long as `ms` says.
std::vector<Race::Eliminated> run_round(Race& race, const std::map<int32_t, double>& ms) {
  std::vector<Score> round;
  for (int32_t slot : race.next_round()) round.push_back({.slot = slot, .step_ms = ms.at(slot), .steps = 4});
  return race.score(round);
}

std::vector<int32_t> slots(const std::vector<Race::Eliminated>& eliminated) {
  std::vector<int32_t> slots;
  for (const Race::Eliminated& out : eliminated) slots.push_back(out.slot);
  return slots;
}

TEST(Race, TheBetterHalfGoesOnAndTheBaselineIsNeverOut) {
  const std::map<int32_t, double> ms = {{0, 110}, {1, 101}, {2, 102}, {3, 103}, {4, 104}, {5, 105}, {6, 106}, {7, 107}};
  Race race(kBaseline, arms(7), core::Rng(1));
  EXPECT_THAT(slots(run_round(race, ms)), UnorderedElementsAre(5, 6, 7));
  EXPECT_THAT(slots(run_round(race, ms)), UnorderedElementsAre(3, 4));
  EXPECT_FALSE(race.is_over());
  EXPECT_THAT(race.next_round(), UnorderedElementsAre(0, 1, 2));
  run_round(race, ms);
  EXPECT_TRUE(race.is_over());
  ASSERT_TRUE(race.winner().has_value());
  EXPECT_EQ(1, race.winner()->slot);
  EXPECT_NEAR(std::log(110.0 / 101), race.winner()->effect, 1e-12);
  EXPECT_NEAR(0, race.winner()->noise, 1e-12);
}

TEST(Race, EachRoundIsShuffledBySeed) {
  const auto orders = [](uint64_t seed) {
    Race race(kBaseline, arms(7), core::Rng(seed));
    return std::vector{race.next_round(), race.next_round()};
  };
  EXPECT_EQ(orders(3), orders(3));
  EXPECT_NE(orders(3), orders(4));
  EXPECT_NE(orders(3)[0], orders(3)[1]);
}

TEST(Race, EarlierRoundsCountOn) {
  Race race(kBaseline, arms(2), core::Rng(1));
  run_round(race, {{0, 120}, {1, 100}, {2, 102}});
  run_round(race, {{0, 240}, {1, 200}, {2, 204}});  // everything twice as slow: only ratios count
  run_round(race, {{0, 120}, {1, 102}, {2, 100}});
  EXPECT_EQ(1, race.winner()->slot) << "2 % ahead twice, 2 % behind once";
  EXPECT_GT(race.winner()->noise, 0);
}

TEST(Race, OneBadBlockDoesNotDecide) {
  for (int bad = 0; bad < 3; ++bad) {
    Race race(kBaseline, {{.slot = 1, .was_near = true}, {.slot = 2, .was_near = true}}, core::Rng(1));
    for (int round = 0; round < 3; ++round) run_round(race, {{0, 120}, {1, round == bad ? 119 : 100}, {2, 104}});
    ASSERT_TRUE(race.winner().has_value()) << bad;
    EXPECT_EQ(1, race.winner()->slot) << bad;
    EXPECT_NEAR(std::log(1.2), race.winner()->effect, 1e-12) << bad;
  }
}

TEST(Race, WhoWasNearStaysToTheEnd) {
  std::vector<Race::Arm> seven = arms(7);
  seven[6].was_near = true;
  std::map<int32_t, double> ms = {{0, 110}, {1, 101}, {2, 102}, {3, 103}, {4, 104}, {5, 105}, {6, 106}, {7, 250}};
  Race race(kBaseline, seven, core::Rng(1));
  EXPECT_THAT(slots(run_round(race, ms)), UnorderedElementsAre(5, 6));
  EXPECT_THAT(slots(run_round(race, ms)), UnorderedElementsAre(4));
  EXPECT_THAT(race.next_round(), UnorderedElementsAre(0, 1, 2, 3, 7));
  run_round(race, ms);
  EXPECT_EQ(1, race.winner()->slot);
}

TEST(Race, WhoWasNearAndCanNotBeScoredIsOut) {
  Race race(kBaseline, {{.slot = 1, .was_near = true}}, core::Rng(1));
  const std::vector<Score> round = {{.slot = 0, .step_ms = 100, .steps = 4}, {.slot = 1, .step_ms = {}, .steps = 1}};
  EXPECT_THAT(slots(race.score(round)), UnorderedElementsAre(1));
}

TEST(Race, WhoIsFarBehindOrCanNotBeScoredIsOut) {
  Race race(kBaseline, arms(5), core::Rng(1));
  std::vector<Score> round = {{.slot = 0, .step_ms = 1000, .steps = 4}, {.slot = 1, .step_ms = 100, .steps = 4},
                              {.slot = 2, .step_ms = 210, .steps = 2},  {.slot = 3, .step_ms = {}, .steps = 1},
                              {.slot = 4, .step_ms = 130, .steps = 4},  {.slot = 5, .step_ms = 103, .steps = 4}};
  EXPECT_THAT(slots(race.score(round)), UnorderedElementsAre(2, 3, 4));
  EXPECT_THAT(race.next_round(), UnorderedElementsAre(0, 1, 5)) << "the baseline, however slow";
}

TEST(Race, ARoundWithoutTheBaselineDoesNotCount) {
  Race race(kBaseline, arms(3), core::Rng(1));
  EXPECT_TRUE(race.score({{.slot = 0, .step_ms = {}, .steps = 0}, {.slot = 1, .step_ms = 500, .steps = 4}}).empty());
  EXPECT_THAT(race.next_round(), UnorderedElementsAre(0, 1, 2, 3));
  EXPECT_EQ(0, race.progress());
}

TEST(Race, WhoIsFarBehindTheBaselineIsOut) {
  Race race(kBaseline, arms(2), core::Rng(1));
  EXPECT_THAT(slots(run_round(race, {{0, 100}, {1, 130}, {2, 140}})), UnorderedElementsAre(1, 2));
  EXPECT_TRUE(race.is_over());
  EXPECT_FALSE(race.winner().has_value());
}

TEST(Race, OneAloneRacesThreeRoundsAsWell) {
  Race race(kBaseline, arms(1), core::Rng(1));
  int rounds = 0;
  for (; !race.is_over(); ++rounds) run_round(race, {{0, 100}, {1, 80}});
  EXPECT_EQ(3, rounds);
}

// The winner among arms with these step times, beside a baseline of fidelity half that takes 200 ms.
int32_t winner(const std::vector<Race::Arm>& arms, std::map<int32_t, double> ms) {
  Race race(kBaseline, arms, core::Rng(1));
  ms[0] = 200;
  while (!race.is_over()) run_round(race, ms);
  return race.winner()->slot;
}

TEST(Race, WhatRunsStaysUnlessAnotherIsFasterByOnePercent) {
  for (const auto& [ms, wins] : std::map<double, int32_t>{{99.3, 1}, {98.7, 2}}) {
    const std::vector<Race::Arm> both = {{.slot = 1, .fidelity = Fidelity::half, .buckets = 8, .is_running = true},
                                         {.slot = 2, .fidelity = Fidelity::half, .buckets = 2}};
    EXPECT_EQ(wins, winner(both, {{1, 100}, {2, ms}})) << ms;
  }
}

TEST(Race, NobodyWinsWhoIsNotFasterByOnePercent) {
  for (const auto& [ms, wins] : std::map<double, bool>{{101, false}, {100, false}, {99.2, false}, {98.8, true}}) {
    Race race(kBaseline, arms(1), core::Rng(1));
    while (!race.is_over()) run_round(race, {{0, 100}, {1, ms}});
    EXPECT_EQ(wins, race.winner().has_value()) << ms;
  }
}

TEST(Race, WithinThreePercentTheLessLossyWins) {
  const std::vector<Race::Arm> both = {{.slot = 1, .fidelity = Fidelity::lossy, .buckets = 1},
                                       {.slot = 2, .fidelity = Fidelity::half, .buckets = 9}};
  EXPECT_EQ(2, winner(both, {{1, 100}, {2, 102.5}}));
  EXPECT_EQ(1, winner(both, {{1, 100}, {2, 103.5}}));
}

TEST(Race, TheLessLossyIsNotLostInEarlyRounds) {
  std::vector<Race::Arm> eight;
  std::map<int32_t, double> ms;
  for (int32_t slot = 1; slot <= 7; ++slot) {
    eight.push_back({.slot = slot, .fidelity = slot == 7 ? Fidelity::exact : Fidelity::lossy, .buckets = 1});
    ms[slot] = slot == 7 ? 102 : 100 + 0.1 * slot;
  }
  EXPECT_EQ(7, winner(eight, ms));
}

TEST(Race, WithinOneFidelityTheFasterWinsUnlessTheSimplerIsJustAsFast) {
  const std::vector<Race::Arm> both = {{.slot = 1, .fidelity = Fidelity::half, .buckets = 8},
                                       {.slot = 2, .fidelity = Fidelity::half, .buckets = 2}};
  EXPECT_EQ(2, winner(both, {{1, 100}, {2, 100.8}}));
  EXPECT_EQ(1, winner(both, {{1, 100}, {2, 101.2}}));
}

TEST(Race, ALossierStrategyIsWorthMoreThanATie) {
  for (const auto& [ms, wins] : std::map<double, bool>{{98, false}, {96, true}}) {
    Race race(kBaseline, {{.slot = 1, .fidelity = Fidelity::lossy, .buckets = 1}}, core::Rng(1));
    while (!race.is_over()) run_round(race, {{0, 100}, {1, ms}});
    EXPECT_EQ(wins, race.winner().has_value()) << ms;
  }
}

TEST(Race, TheNoiseIsThatOfAPairOfBlocks) {
  const Noise noise{.cv = 0.05};
  double sum = 0, effects = 0;
  const int kRuns = 300;
  std::vector<double> true_pairs;
  for (int run = 0; run < kRuns; ++run) {
    NoiseProcess process(noise, core::Rng(static_cast<uint64_t>(run)));
    true_pairs.push_back(std::log(*process.block(0, 1).step_ms / *process.block(1, 1).step_ms));
    Race race(kBaseline, arms(2), core::Rng(static_cast<uint64_t>(run)));
    while (!race.is_over()) {
      std::vector<Score> round;
      for (int32_t slot : race.next_round()) round.push_back(process.block(slot, slot == 0 ? 120 : 100 + slot));
      race.score(round);
    }
    ASSERT_TRUE(race.winner().has_value());
    sum += race.winner()->noise / kRuns;
    effects += race.winner()->effect / kRuns;
  }
  EXPECT_NEAR(moments(true_pairs).sd, sum, 0.25 * moments(true_pairs).sd);
  EXPECT_NEAR(std::log(1.2), effects, 0.02);
}

// Eight arms, one best, two within 3 %, the others 3 to 60 % worse. Noise of 5 %, spikes, a
// transient of a step, drift. One arm is the baseline.
TEST(Race, FindsTheBestUnderNoiseAndDrift) {
  const int kRuns = 400;
  int within = 0;
  double regret = 0;
  for (int run = 0; run < kRuns; ++run) {
    core::Rng rng(static_cast<uint64_t>(run));
    std::vector<double> ms = {100};
    for (int i = 0; i < 2; ++i) ms.push_back(100 * (1 + 0.03 * rng.uniform()));
    for (int i = 0; i < 4; ++i) ms.push_back(100 * (1.03 + 0.57 * rng.uniform()));
    rng.shuffle(ms);
    NoiseProcess process(kReference, rng.fork("noise"));
    Race race(kBaseline, arms(7), rng.fork("race"));
    while (!race.is_over()) {
      std::vector<Score> round;
      for (int32_t slot : race.next_round()) {
        round.push_back(process.block(slot, slot == 0 ? 160 : ms[static_cast<size_t>(slot - 1)]));
      }
      race.score(round);
    }
    ASSERT_TRUE(race.winner().has_value());
    const double chosen = ms[static_cast<size_t>(race.winner()->slot - 1)];
    within += chosen <= 103 ? 1 : 0;
    regret += (chosen / 100 - 1) / kRuns;
  }
  EXPECT_GE(within, 0.97 * kRuns);
  EXPECT_LE(regret, 0.012);
}

// Other load makes one block in seven slower by a third to a factor of two. One arm, which was the fastest in a
// measurement before, is a fifth faster than the baseline, and the others are as slow as it is.
TEST(Race, FindsTheBestUnderBursts) {
  const int kRuns = 2000;
  int found = 0;
  for (int run = 0; run < kRuns; ++run) {
    core::Rng rng(static_cast<uint64_t>(run));
    const std::vector<double> ms = {120, 100, 119, 120, 121, 122, 125, 130};
    std::vector<Race::Arm> seven = arms(7);
    seven[0].was_near = true;
    Race race(kBaseline, seven, rng.fork("race"));
    while (!race.is_over()) {
      std::map<int32_t, double> blocks;
      for (size_t slot = 0; slot < ms.size(); ++slot) {
        const double burst = rng.uniform() < 0.15 ? 1.33 + 0.67 * rng.uniform() : 1;
        blocks[static_cast<int32_t>(slot)] = ms[slot] * burst * std::exp(0.02 * rng.normal());
      }
      run_round(race, blocks);
    }
    found += race.winner() && race.winner()->slot == 1 ? 1 : 0;
  }
  EXPECT_GE(found, 0.93 * kRuns) << "two of its three blocks are hit in 6 % of the races";
}

}  // namespace
}  // namespace gradtune::tuner
