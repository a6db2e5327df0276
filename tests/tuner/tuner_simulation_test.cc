// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests many whole tunings in noise: promises on average, and rules that must hold in every one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/tuner/bursty_machine.h"
#include "tests/tuner/simulated_job.h"

namespace gradtune::tuner {
namespace {

using policies::Candidate;
using policies::Proposal;

// One kind of job: step times of the baselines and of the arms. All arms are measured in one go, then raced.
struct Scenario {
  std::map<std::string, double> baselines_ms;
  std::vector<double> arms_ms;
  Noise noise;
};

struct Tally {
  int runs = 0, committed = 0, within_3_percent = 0, low_holds = 0, high_holds = 0, over_200_steps = 0;
  double regret = 0, steps = 0, cost = 0;  // means; cost in baseline steps
  double most_cost = 0;
  double gain_bias = 0;  // mean over the runs that committed
};

SimulatedJob tuning(const Scenario& scenario, uint64_t seed) {
  JobOptions options;
  options.seed = seed;
  options.noise = scenario.noise;
  std::map<std::string, double> ms = scenario.baselines_ms;
  std::vector<Candidate> baselines, arms;
  for (const auto& [label, baseline_ms] : ms) {
    baselines.push_back(candidate(label, static_cast<int>(baselines.size()), "bf16"));
  }
  for (size_t i = 0; i < scenario.arms_ms.size(); ++i) {
    const std::string label = "arm" + std::to_string(i);
    ms[label] = scenario.arms_ms[i];
    arms.push_back(candidate(label, 10 + static_cast<int>(i), "bf16"));
  }
  core::Rng(seed).fork("arms").shuffle(arms);
  return SimulatedJob(options, ms, {{arms, false}, {arms, true}}, baselines);
}

Tally tunings(const Scenario& scenario, int runs) {
  Tally tally{.runs = runs};
  double baseline_ms = 1e9;
  for (const auto& [label, ms] : scenario.baselines_ms) baseline_ms = std::min(baseline_ms, ms);
  const double best_ms = std::min(baseline_ms, *std::min_element(scenario.arms_ms.begin(), scenario.arms_ms.end()));
  for (int run = 0; run < runs; ++run) {
    SimulatedJob job = tuning(scenario, static_cast<uint64_t>(run));
    job.run(3);
    const Outcome& outcome = job.tuner->outcome();
    const double chosen_ms = job.true_ms(job.label_in_force());
    tally.within_3_percent += chosen_ms <= 1.03 * best_ms ? 1 : 0;
    tally.regret += (chosen_ms / best_ms - 1) / runs;
    tally.steps += static_cast<double>(outcome.steps) / runs;
    tally.over_200_steps += outcome.steps > 200 ? 1 : 0;
    tally.cost += outcome.cost_ms / baseline_ms / runs;
    tally.most_cost = std::max(tally.most_cost, outcome.cost_ms / baseline_ms);
    if (!outcome.committed) continue;
    const double gain = 1 - chosen_ms / baseline_ms;
    ++tally.committed;
    tally.gain_bias += outcome.gain - gain;
    tally.low_holds += outcome.gain_low <= gain ? 1 : 0;
    tally.high_holds += gain <= outcome.gain_high ? 1 : 0;
  }
  if (tally.committed > 0) tally.gain_bias /= tally.committed;
  return tally;
}

// Three standard errors of a share.
double tolerance(double share, int runs) { return 3 * std::sqrt(share * (1 - share) / runs); }

TEST(Tunings, IdenticalCandidatesAreCommittedInAtMostFivePercent) {
  const int kRuns = 1'000;
  for (const Noise& noise : {kReference, Noise{.cv = 0.05, .spikes = 0.02}}) {
    const Tally tally = tunings({{{"baseline", 100}}, std::vector<double>(7, 100), noise}, kRuns);
    EXPECT_LE(tally.committed, kRuns * (0.05 + tolerance(0.05, kRuns)));
  }
}

// The number of tunings, on a machine that others load in bursts, that commit a strategy no faster than the faster
// baseline. All arms are as fast as that.
int false_commits(const Bursts& bursts, const std::vector<double>& baselines_ms, int runs) {
  int committed = 0;
  for (int run = 0; run < runs; ++run) {
    const auto seed = static_cast<uint64_t>(run);
    JobOptions options;
    options.seed = seed;
    std::map<std::string, double> ms;
    std::vector<Candidate> baselines, arms;
    for (const double baseline_ms : baselines_ms) {
      const std::string label = "baseline" + std::to_string(baselines.size());
      ms[label] = baseline_ms;
      baselines.push_back(candidate(label, static_cast<int>(baselines.size()), "bf16"));
    }
    for (int i = 0; i < 7; ++i) {
      const std::string label = "arm" + std::to_string(i);
      ms[label] = *std::ranges::min_element(baselines_ms);
      arms.push_back(candidate(label, 10 + i, "bf16"));
    }
    options.preparing_ms = baselines_ms[0];
    options.step = [&, machine = BurstyMachine(bursts, core::Rng(seed).fork("load"))](
                       int64_t, const std::string& label) mutable {
      return SimulatedStep{.step_ms = machine.step_ms(ms.at(label)), .compute_ms_max = 1, .compute_ms_min = 1};
    };
    SimulatedJob job(options, ms, {{arms, false}, {arms, true}}, baselines);
    job.run(3);
    committed += job.tuner->outcome().committed ? 1 : 0;
  }
  return committed;
}

TEST(Tunings, LoadThatComesInBurstsIsNotTakenForAGain) {
  const int kRuns = 600;
  for (const Bursts& bursts : {Bursts{}, Bursts{.wild = 0.3}, Bursts{.shortest_s = 0.02, .longest_s = 0.5}}) {
    for (double step_ms : {3.0, 30.0, 300.0}) {
      EXPECT_LE(false_commits(bursts, {step_ms}, kRuns), kRuns * (0.05 + tolerance(0.05, kRuns))) << step_ms << " ms";
    }
  }
}

// A burst that hits the blocks of the faster baseline makes the slower one look faster. Then every arm as fast as
// the faster one seems to be a gain.
TEST(Tunings, TheSlowerBaselineIsNothingToGainAgainst) {
  const int kRuns = 600;
  for (const Bursts& bursts : {Bursts{}, Bursts{.wild = 0.3}, Bursts{.shortest_s = 0.02, .longest_s = 0.5}}) {
    for (double slower : {1.15, 1.3}) {
      for (double step_ms : {5.0, 100.0}) {
        EXPECT_LE(false_commits(bursts, {step_ms, slower * step_ms}, kRuns), kRuns * (0.05 + tolerance(0.05, kRuns)))
            << step_ms << " ms, the other baseline " << slower << " times that";
      }
    }
  }
}

// Eight arms, one of which is the baseline; 5 % noise, spikes, transients, drift.
TEST(Tunings, EndNearTheBestAndClaimWhatIsTrue) {
  const int kRuns = 400;
  const Tally tally = tunings({{{"baseline", 125}}, {100, 101, 102, 103, 112, 130, 155}, kReference}, kRuns);
  EXPECT_GE(tally.within_3_percent, 0.97 * kRuns);
  EXPECT_LE(tally.regret, 0.02);
  EXPECT_NEAR(0, tally.gain_bias, 0.01);
  EXPECT_GE(tally.low_holds, tally.committed * (0.96 - tolerance(0.96, tally.committed)));
  EXPECT_GE(tally.high_holds, tally.committed * (0.975 - tolerance(0.975, tally.committed)));
}

TEST(Tunings, AGainOfTenPercentIsFound) {
  const int kRuns = 400;
  const Tally tally = tunings({{{"baseline", 100}}, {90}, kReference}, kRuns);
  EXPECT_GE(tally.committed, 0.85 * kRuns);
  EXPECT_NEAR(0, tally.gain_bias, 0.01);
}

// Jobs as measured on small clusters: 200 Mbit/s and 1 Gbit/s, fp32 and 16-bit baseline. At most 200 steps, and 60
// baseline steps (3 % of 2,000).
constexpr Noise kCluster{.cv = 0.03, .spikes = 0.02, .drift = 0.04, .transient = 1.3};

TEST(Tunings, OnASlowNetworkTheyAreShortAndCheap) {
  const int kRuns = 200;
  const Tally tally = tunings({{{"a", 1550}, {"b", 800}}, {95, 100, 110, 120, 140, 170, 200}, kCluster}, kRuns);
  EXPECT_EQ(kRuns, tally.committed);
  EXPECT_LE(tally.regret, 0.005);
  EXPECT_LE(tally.steps, 160);
  EXPECT_EQ(0, tally.over_200_steps);
  EXPECT_LE(tally.cost, 15);
  EXPECT_LE(tally.most_cost, 60);
  EXPECT_NEAR(0, tally.gain_bias, 0.01);
}

TEST(Tunings, OnAFasterNetworkToo) {
  const int kRuns = 200;
  const Tally tally = tunings({{{"a", 365}, {"b", 230}}, {190, 196, 202, 210, 220, 230, 240}, kCluster}, kRuns);
  EXPECT_GE(tally.committed, 0.98 * kRuns);
  EXPECT_LE(tally.regret, 0.01);
  EXPECT_LE(tally.steps, 191);
  EXPECT_LE(tally.over_200_steps, 0.1 * kRuns);
  EXPECT_LE(tally.cost, 25);
  EXPECT_LE(tally.most_cost, 60);
  EXPECT_NEAR(0, tally.gain_bias, 0.01);
}

// Anything may happen. Ranks always agree (the job checks that), tuning ends, and a strategy that stays is
// confirmed.
TEST(Tunings, EndWellWhateverHappens) {
  int committed = 0, kept = 0, searched_again = 0;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    core::Rng rng = core::Rng(seed).fork("trouble");
    const auto happens = [&](double probability) { return rng.uniform() < probability; };
    JobOptions options;
    options.seed = seed;
    options.ranks = 1 + static_cast<int>(rng.below(4));
    options.noise = happens(0.5) ? kReference : kCluster;
    options.tuner.budget_steps = 20 + static_cast<int>(rng.below(600));
    const int lossy_after = happens(0.3) ? static_cast<int>(rng.below(400)) : 0;
    options.tuner.lossy_after = lossy_after;
    options.tuner.retune = lossy_after == 0;  // audits have steps of their own
    options.preparing_steps = 1 + static_cast<int>(rng.below(7));
    const double excluded = happens(0.3) ? 0.5 * rng.uniform() : 0, nonfinite = happens(0.3) ? 0.5 * rng.uniform() : 0;
    const auto strikes = [seed](int64_t step, const char* what, double probability) {
      return core::Rng(seed + static_cast<uint64_t>(step)).fork(what).uniform() < probability;
    };
    options.excluded = [=](int64_t step) { return strikes(step, "excluded", excluded); };
    options.nonfinite = [=](int64_t step, const std::string&) { return strikes(step, "nonfinite", nonfinite); };
    std::map<std::string, double> ms = {{"a", 100}, {"b", 80 + 40 * rng.uniform()}};
    std::vector<Candidate> arms;
    std::set<std::string> lossy_labels;
    for (uint64_t i = 0; i < 1 + rng.below(9); ++i) {
      const std::string label = "arm" + std::to_string(i);
      ms[label] = happens(0.1) ? 1000 : 60 + 60 * rng.uniform();
      if (happens(0.1)) options.failing.insert(label);
      const bool is_lossy = happens(0.3);
      if (is_lossy) lossy_labels.insert(label);
      arms.push_back(candidate(label, 10 + static_cast<int>(i), is_lossy ? "topk" : "", 1 + rng.below(5)));
    }
    std::vector<Proposal> script;
    for (const Candidate& arm : arms) {
      if (happens(0.5)) script.push_back({{arm, arms[rng.below(arms.size())]}, false});
    }
    script.push_back({arms, true});
    const bool imports = happens(0.2);
    std::vector<Candidate> baselines = {candidate("a", 0)};
    if (happens(0.5)) baselines.push_back(candidate("b", 1, "bf16"));
    SimulatedJob job(options, ms, script, baselines, imports ? std::optional(arms[0]) : std::nullopt);
    job.run(30);
    while (job.steps.size() < static_cast<size_t>(lossy_after)) job.one_step();  // until there may be another search
    job.run(30);

    const Outcome& outcome = job.tuner->outcome();
    ASSERT_EQ(Stage::watch, job.tuner->stage()) << "seed " << seed;
    const auto searches = 1 + static_cast<int64_t>(job.decided(What::more_may_run).size());
    ASSERT_LE(searches, 2) << "seed " << seed;
    searched_again += searches > 1;
    ASSERT_LE(outcome.steps, searches * options.tuner.budget_steps) << "seed " << seed;
    for (const auto& step : job.steps) {
      const bool is_lossy = lossy_labels.contains(step.label);
      ASSERT_FALSE(is_lossy && step.step < lossy_after) << "seed " << seed;
    }
    ASSERT_EQ(outcome.label, job.label_in_force()) << "seed " << seed;
    ASSERT_EQ(outcome.committed, job.label_in_force().starts_with("arm")) << "seed " << seed;
    ASSERT_EQ(baselines.size() + (outcome.committed ? 1 : 0), job.held.size()) << "seed " << seed;
    if (outcome.committed) {
      ASSERT_LT(0, outcome.gain_low) << "seed " << seed;
      ASSERT_LE(outcome.gain_low, outcome.gain);
      ASSERT_LE(outcome.gain, outcome.gain_high);
    }
    ++(outcome.committed ? committed : kept);
  }
  EXPECT_GT(committed, 100);
  EXPECT_GT(kept, 100);
  EXPECT_GT(searched_again, 20);
}

}  // namespace
}  // namespace gradtune::tuner
