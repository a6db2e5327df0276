// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests whole tunings with policy `auto`, in noise. The truth of the jobs is the timeline under rates that the policy
// does not know.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "policies/cost/program_cost.h"
#include "policies/planner.h"
#include "policies/space/admission.h"
#include "policies/space/baseline.h"
#include "tests/policies/jobs.h"
#include "tests/policies/timeline_job.h"
#include "tests/tuner/simulated_job.h"

namespace gradtune::tuner {
namespace {

using core::Fidelity;
using policies::Knowledge;
using policies::testing::TimelineJob;

constexpr Noise kSteps{.cv = 0.02, .spikes = 0.02, .drift = 0.02, .transient = 1.3};

TimelineJob reference_job(double link_bytes_per_us, Fidelity fidelity, int ranks = 2) {
  TimelineJob job{.knowledge = policies::testing::knowledge_of(policies::testing::reference_table(), ranks, fidelity)};
  job.knowledge.host_threads = 1;
  job.truth = policies::testing::made_up_cost(ranks, link_bytes_per_us, job.knowledge.codecs);
  return job;
}

SimulatedJob tuning(const TimelineJob& job, uint64_t seed) {
  JobOptions options;
  options.seed = seed;
  options.noise = kSteps;
  options.preparing_ms = 10;
  options.knowledge = job.knowledge;
  options.make_policy = [] { return policies::make_policy("auto", {}).value(); };
  const double compute_ms = job.rest_ms + job.knowledge.table.tensors.back().ready_us * 1e-3;
  options.compute_ms = [compute_ms](int64_t, int) { return compute_ms; };
  options.strategy_ms = [&job](const core::Strategy& strategy) { return job.step_ms(strategy); };
  options.ops = [&job, rng = core::Rng(seed).fork("operations")](const core::Strategy& strategy) mutable {
    return job.timed(strategy, 0.05, rng).steps;
  };
  return SimulatedJob(options, {}, {}, policies::baselines(job.knowledge.table, job.knowledge.fidelity));
}

// The result of its planner if that knows the truth.
double offline_ms(const TimelineJob& job) {
  const Knowledge& knowledge = job.knowledge;
  const auto options = policies::tree_options({.ranks = job.truth.ranks,
                                               .host_threads = knowledge.host_threads,
                                               .fidelity = knowledge.fidelity,
                                               .codecs = knowledge.codecs,
                                               .traits = knowledge.traits,
                                               .numel = knowledge.table.numel()});
  const auto model = policies::make_program_cost(job.truth, options, knowledge.traits, knowledge.table.numel());
  return job.step_ms(policies::plan("auto", {*model.value(), knowledge, 32}).value().strategy);
}

struct Network {
  double link_bytes_per_us;
  Fidelity fidelity;
};
class PlannedTuning : public testing::TestWithParam<Network> {};
INSTANTIATE_TEST_SUITE_P(Networks, PlannedTuning,
                         testing::Values(Network{20, Fidelity::half}, Network{120, Fidelity::half},
                                         Network{1200, Fidelity::half}, Network{20, Fidelity::lossy},
                                         Network{120, Fidelity::lossy}, Network{20, Fidelity::exact}));

TEST_P(PlannedTuning, AutoEndsNearTheOfflineOptimumAndNeverBehindTheBaseline) {
  const TimelineJob job = reference_job(GetParam().link_bytes_per_us, GetParam().fidelity, 4);
  const double offline = std::min(offline_ms(job), job.baseline_ms());
  constexpr int kRuns = 8;
  double sum = 0;
  for (uint64_t seed = 0; seed < kRuns; ++seed) {
    SimulatedJob run = tuning(job, seed);
    run.run(3);
    ASSERT_EQ(Stage::watch, run.tuner->stage());
    const double ms = job.step_ms(run.strategy_in_force());
    sum += ms / kRuns;
    // A race prefers the less lossy one of two within 3 %.
    EXPECT_LE(ms, 1.06 * offline) << run.label_in_force();
    EXPECT_LE(ms, 1.01 * job.baseline_ms()) << run.label_in_force();
    EXPECT_LE(run.tuner->outcome().steps, 260);
  }
  EXPECT_LE(sum, 1.03 * offline);
}

TEST(PlannedTunings, PredictedAndMeasuredTimesAreBothTold) {
  const TimelineJob job = reference_job(20, Fidelity::lossy, 4);
  SimulatedJob run = tuning(job, 1);
  run.run(3);
  std::map<std::string, double> predicted;
  int pairs = 0;
  for (const Decision& decision : run.decisions) {
    if (decision.what == What::predict) predicted[decision.label] = decision.value;
    if (decision.what != What::measure || decision.value == 0) continue;
    ASSERT_TRUE(predicted.contains(decision.label)) << decision.label;
    // A strategy that never ran looks cheaper than it is.
    EXPECT_NEAR(predicted[decision.label], decision.value, 0.4 * decision.value) << decision.label;
    ++pairs;
  }
  EXPECT_GE(pairs, 2);
  const Outcome& outcome = run.tuner->outcome();
  ASSERT_TRUE(outcome.committed);
  ASSERT_TRUE(outcome.predicted_ms);
  EXPECT_NEAR(*outcome.predicted_ms, outcome.committed_ms, 0.3 * outcome.committed_ms);
}

// Times as another version of a policy left them in a checkpoint: of buckets and steps that this version's plans do
// not have.
TEST(PlannedTunings, TimesOfOperationsThatAPlanDoesNotHaveAreLeftOut) {
  const TimelineJob job = reference_job(20, Fidelity::half);
  using Op = policies::TimedOp;
  for (const Op& other : {Op{1'000'000, 0, 0, 1000}, Op{0, 1000, 0, 1000}, Op{-1, 0, 0, 1000}}) {
    SimulatedJob run = tuning(job, 1);
    for (int step = 0; step < 400 && run.tuner->stage() != Stage::watch; ++step) {
      run.tuner->learn_timing(run.slot_in_force(), {{0, -1, 0, 10}, other});
      run.one_step();
    }
    EXPECT_EQ(Stage::watch, run.tuner->stage());
    EXPECT_LE(job.step_ms(run.strategy_in_force()), 1.01 * job.baseline_ms()) << run.label_in_force();
  }
}

// The best strategy there was never measured: only a model can know it. When the link falls from 1200 to 12 bytes a
// us, the committed strategy suddenly takes twice as long as the baseline.
TEST(PlannedTunings, AfterTheLinkChangedTheyEndNearItsOptimumAgain) {
  for (const auto& [before, after] : {std::pair(125.0, 12.5), std::pair(12.5, 125.0), std::pair(1200.0, 12.0)}) {
    double ratios = 0;
    constexpr int kRuns = 6;
    for (uint64_t seed = 0; seed < kRuns; ++seed) {
      TimelineJob job = reference_job(before, Fidelity::lossy);
      SimulatedJob run = tuning(job, seed);
      run.run(200);
      ASSERT_EQ(Stage::watch, run.tuner->stage());
      job.truth = reference_job(after, Fidelity::lossy).truth;
      for (int step = 0; step < 1'000; ++step) run.one_step();
      const double ratio = job.step_ms(run.tuner->chosen().strategy) / offline_ms(job);
      EXPECT_LE(ratio, 1.13) << run.tuner->chosen().label << ", from " << before << " to " << after;
      ratios += ratio / kRuns;
    }
    EXPECT_LE(ratios, 1.03) << "from " << before << " to " << after << " bytes a us";
  }
}

// A policy that was not told the times of operations again would plan something else.
TEST(PlannedTunings, InterruptedTheyDecideAsIfTheyHadNotBeen) {
  constexpr int64_t kEnd = 160;
  const TimelineJob job = reference_job(20, Fidelity::lossy, 4);
  SimulatedJob whole = tuning(job, 1);
  for (int64_t step = 0; step < kEnd; ++step) whole.one_step();
  ASSERT_FALSE(whole.decided(What::commit).empty());
  for (int64_t at = 3; at < kEnd; at += 13) {
    SimulatedJob run = tuning(job, 1);
    for (int64_t step = 0; step < at; ++step) run.one_step();
    run.save_and_restore();
    for (int64_t step = at; step < kEnd; ++step) run.one_step();
    ASSERT_EQ(run.steps, whole.steps) << "interrupted after step " << at;
  }
}

}  // namespace
}  // namespace gradtune::tuner
