// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The detector on simulated step times: log-normal noise, correlated or not, with 2 % of steps 1.5 to 3 times as long.
#include "tuner/drift.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/core/rng.h"

namespace gradtune::tuner {
namespace {

struct Noise {
  double cv = 0.05;
  double spikes = 0.02;
  double correlation = 0;  // of the logarithm with that of the step before
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

int alarms_in(int64_t steps, const Noise& noise, uint64_t seed) {
  Steps times(noise, seed);
  Drift drift;
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
  double log_shift = 0;  // mean of what alarms say
  int missed = 0;        // no alarm in 2,000 steps, or one before the change
};
Delay delay_of(double factor, const Noise& noise) {
  constexpr int kRuns = 500;
  Delay delay;
  for (uint64_t run = 0; run < kRuns; ++run) {
    Steps times(noise, 1'000 + run);
    Drift drift;
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

// The limits are goals of the project; what is usual here: 48, 20, 19, 47, 20 steps.
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
