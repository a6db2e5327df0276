// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests the detector on simulated step times: log-normal noise, correlated or not, with 2 % of steps 1.5 to 3 times
// as long.
#include "tuner/drift.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "engine/core/rng.h"

namespace gradtune::tuner {
namespace {

struct Noise {
  double cv = 0.05;
  double spikes = 0.02;
  double correlation = 0;  // between the logarithms of consecutive steps
};

class Steps {
 public:
  Steps(const Noise& noise, uint64_t seed) : noise_(noise), rng_(seed), state_(rng_.normal()) {}
  double next() {
    const double c = noise_.correlation;
    state_ = c * state_ + std::sqrt(1 - c * c) * rng_.normal();
    const double factor = std::exp(noise_.cv * state_);
    return 100 * (rng_.uniform() < noise_.spikes ? factor * (1.5 + 1.5 * rng_.uniform()) : factor);
  }
  uint64_t below(uint64_t bound) { return rng_.below(bound); }

 private:
  const Noise noise_;
  core::Rng rng_;
  double state_;
};

int alarms_in(int64_t steps, const Noise& noise, uint64_t seed, const DriftOptions& options = {}) {
  Steps times(noise, seed);
  Drift drift(options);
  int alarms = 0;
  for (int64_t i = 0; i < steps; ++i) alarms += drift.record(times.next()) ? 1 : 0;
  return alarms;
}

TEST(Drift, IsSilentWhileNothingChanges) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    EXPECT_EQ(alarms_in(100'000, {}, seed), 0) << seed;
    EXPECT_EQ(alarms_in(100'000, {.correlation = 0.5}, seed), 0) << seed;
  }
}

struct Delay {
  double mean = 0;       // steps
  double log_shift = 0;  // mean shift that alarms report
  int missed = 0;        // no alarm in 2,000 steps, or one before the change
};
Delay delay_of(double factor, const Noise& noise, const DriftOptions& options = {}) {
  constexpr int kRuns = 500;
  Delay delay;
  for (uint64_t run = 0; run < kRuns; ++run) {
    Steps times(noise, 1'000 + run);
    Drift drift(options);
    bool too_early = false;
    const uint64_t change_at = 150 + times.below(21);  // anywhere in a block
    for (uint64_t i = 0; i < change_at; ++i) too_early = drift.record(times.next()) || too_early;
    std::optional<Drift::Alarm> alarm;
    int steps = 0;
    while (!alarm && steps < 2'000) alarm = drift.record(factor * times.next()), ++steps;
    delay.missed += too_early || !alarm ? 1 : 0;
    delay.mean += steps / double{kRuns};
    if (alarm) delay.log_shift += alarm->log_shift / kRuns;
  }
  return delay;
}

// The limits are goals of the project; usual results here are 48, 20, 19, 47 and 20 steps.
TEST(Drift, SeesAChangeSoonWhereverInABlockItFalls) {
  struct Case {
    double factor, steps;
  };
  for (const Case& given : {Case{1.1, 50}, {1.2, 22}, {1.5, 22}, {1 / 1.1, 60}, {1 / 1.2, 22}}) {
    const Delay delay = delay_of(given.factor, {});
    EXPECT_LE(delay.mean, given.steps) << given.factor;
    EXPECT_EQ(delay.missed, 0) << given.factor;
    EXPECT_NEAR(delay.log_shift, std::log(given.factor), 0.15 * std::abs(std::log(given.factor))) << given.factor;
  }
}

// Simulated delays of a reference implementation: two-sided, change anywhere in a block. (Its medians of even blocks
// are upper ones, which makes speed-ups slower to see. So those columns hold for odd blocks only.)
TEST(Drift, ReproducesTheTableOfTheReference) {
  struct Row {
    Noise noise;
    int block;
    double evidence, false_alarms;  // in 10,000 steps, over all runs
    std::vector<std::pair<double, double>> delays;
  };
  const Noise plain{}, correlated{.spikes = 0, .correlation = 0.5}, small{.cv = 0.03};
  const Row rows[] = {
      {plain, 5, 2, 0.002, {{1.1, 25}, {1.2, 10}, {1.5, 10}, {1 / 1.1, 24}, {1 / 1.2, 10}, {1 / 1.5, 10}}},
      {plain, 10, 1, 0.001, {{1.1, 26}, {1.2, 11}, {1.5, 9}}},
      {plain, 10, 2, 0.000, {{1.1, 44}, {1.2, 20}, {1.5, 19}}},
      {plain, 20, 2, 0.000, {{1.1, 94}, {1.2, 40}, {1.5, 39}}},
      {correlated, 5, 2, 0.140, {{1.1, 28}, {1.2, 11}, {1.5, 10}, {1 / 1.1, 26}, {1 / 1.2, 11}, {1 / 1.5, 10}}},
      {correlated, 10, 2, 0.017, {{1.1, 47}, {1.2, 20}, {1.5, 19}}},
      {correlated, 20, 2, 0.001, {{1.1, 103}, {1.2, 41}, {1.5, 39}}},
      {small, 10, 2, 0.000, {{1.1, 44}, {1.2, 19}, {1.5, 19}}},
  };
  for (const Row& row : rows) {
    const DriftOptions options{.block_steps = row.block, .evidence = row.evidence};
    SCOPED_TRACE(testing::Message() << "blocks of " << row.block << ", correlation " << row.noise.correlation);
    constexpr int kRuns = 300;
    double alarmed = 0;
    for (uint64_t run = 0; run < kRuns; ++run) {
      alarmed += alarms_in(10'050, row.noise, 77'000 + run, options) > 0 ? 1.0 / kRuns : 0;
    }
    const double error = std::sqrt(std::max(row.false_alarms, 0.003) * (1 - row.false_alarms) / kRuns);
    EXPECT_NEAR(alarmed, row.false_alarms, 3 * error);
    for (const auto& [factor, steps] : row.delays) {
      EXPECT_NEAR(delay_of(factor, row.noise, options).mean, steps, 1 + 0.1 * steps) << factor;
    }
  }
}

TEST(Drift, ASmallChangeIsNoChange) {
  const Delay delay = delay_of(1.03, {});
  EXPECT_GE(delay.missed, 450) << "of 500";
}

TEST(Drift, NoiseAsksForLongerBlocksAndThenForLargerChanges) {
  const auto learned = [](const Noise& noise) {
    Steps times(noise, 3);
    Drift drift;
    for (int i = 0; i < 50; ++i) (void)drift.record(times.next());
    return drift;
  };
  const Drift quiet = learned({.cv = 0.02}), loud = learned({.cv = 0.3});
  EXPECT_EQ(quiet.block_steps(), 9);
  EXPECT_NEAR(quiet.log_change(), std::log(1.1), 1e-12);
  EXPECT_EQ(loud.block_steps(), 21);
  EXPECT_GT(loud.log_change(), quiet.log_change());
}

TEST(Drift, AReferenceThatAChangeFellIntoDoesNotMakeItDeaf) {
  Steps times({.cv = 0.03}, 8);
  Drift drift;
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(drift.record((i < 20 ? 2 : 1) * times.next()));
  EXPECT_GT(drift.log_change(), std::log(1.5));
  for (int i = 0; i < 60; ++i) EXPECT_FALSE(drift.record(times.next())) << i;
  EXPECT_LT(drift.log_change(), std::log(1.2));
  int steps = 0;
  while (steps < 100 && !drift.record(1.2 * times.next())) ++steps;
  EXPECT_LE(steps, 40);
}

TEST(Drift, AfterAnAlarmTheNewLevelIsTheReference) {
  Steps times({.cv = 0.02, .spikes = 0}, 4);
  Drift drift;
  int alarms = 0;
  for (int i = 0; i < 3'000; ++i)
    alarms += drift.record((i < 1'000 ? 1.0 : i < 2'000 ? 1.4 : 1.0) * times.next()) ? 1 : 0;
  EXPECT_EQ(alarms, 2) << "up once, down once, and nothing in between";
}

TEST(Drift, SpikesAloneAreNoAlarm) {
  Drift drift;
  for (int i = 0; i < 10'000; ++i) EXPECT_FALSE(drift.record(i % 5 == 4 ? 900 : 100 + i % 3)) << i;
}

}  // namespace
}  // namespace gradtune::tuner
