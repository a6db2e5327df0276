// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests the tuner's answer to a bucket that exceeds its error budget, at every stage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tests/tuner/simulated_job.h"
#include "tuner/confirm.h"

namespace gradtune::tuner {
namespace {

using policies::Candidate;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// The candidate with `buckets` buckets of one tensor each.
Candidate buckets_of(Candidate candidate) {
  int32_t tensor = 0;
  for (core::Bucket& bucket : candidate.strategy.buckets) bucket.slices[0].tensor = tensor++;
  core::set_default_flow(candidate.strategy);
  return candidate;
}

const core::Option kHalfOption = core::encoded_all_reduce({"bf16"}, core::Place::device);

// The baseline with 16 bits, of three tensors.
Candidate half() {
  Candidate half = buckets_of(candidate("bf16", 1, "bf16", 3));
  for (core::Bucket& bucket : half.strategy.buckets) bucket.option = kHalfOption;
  core::set_default_flow(half.strategy);
  return half;
}

const Candidate kFull = candidate("fp32", 0), kHalf = half();
const Candidate kMerged = candidate("merged", 2, "bf16", 3), kSparse = buckets_of(candidate("sparse", 3, "topk", 3));
const std::string kRepaired = "sparse, as the baseline: bucket 1";
std::map<std::string, double> times() {
  return {{"fp32", 120},
          {"bf16", 100},
          {"merged", 80},
          {"sparse", 50},
          {kRepaired, 65},
          {kRepaired + ", 0", 90},
          {"sparse, as the baseline: bucket 0", 75}};
}

constexpr core::Excess kError{.kind = core::Excess::Kind::error, .bucket = 1, .value = 0.75, .allowed = 0.5};
constexpr int64_t kNever = int64_t{1} << 60;

// From that step on, the last rank finds the sparse strategy over its budget.
JobOptions over_from(const int64_t& step, const core::Excess& excess = kError) {
  JobOptions options;
  options.ranks = 3;
  options.excess = [&step, excess](int64_t at, const std::string& label) {
    return label == "sparse" && at >= step ? excess : core::Excess();
  };
  return options;
}

SimulatedJob make_job(const JobOptions& options, std::optional<Candidate> imported = {},
                      const std::map<std::string, double>& changed = {}) {
  std::map<std::string, double> true_ms = times();
  for (const auto& [label, ms] : changed) true_ms[label] = ms;
  return {options, true_ms, {{{kMerged, kSparse}, false}, {{kMerged, kSparse}, true}}, {kFull, kHalf}, imported};
}

int64_t last_step_of(const SimulatedJob& job, const std::string& label) {
  int64_t last = -1;
  for (const SimulatedJob::Step& step : job.steps) last = step.label == label ? step.step : last;
  return last;
}

// The first step from that one on that was over its budget; -1: none.
int64_t first_over(const SimulatedJob& job, int64_t from) {
  for (const SimulatedJob::Step& step : job.steps) {
    if (step.step >= from && step.label == "sparse") return step.step;
  }
  return -1;
}

TEST(Guard, WhatIsCommittedGivesWayToTheBaselineOnAllRanksWithinTheLead) {
  int64_t from = kNever;
  SimulatedJob job = make_job(over_from(from));
  job.run(/*more=*/60);
  ASSERT_EQ(job.label_in_force(), "sparse");
  from = static_cast<int64_t>(job.steps.size());
  const int64_t epoch = job.epoch();
  for (int i = 0; i < 5; ++i) job.one_step();
  EXPECT_LE(last_step_of(job, "sparse"), from + kLead);
  EXPECT_EQ(job.label_in_force(), "bf16");
  EXPECT_EQ(job.epoch(), epoch + 1);
  EXPECT_EQ(job.decided(What::over_error_budget), std::vector<std::string>{"sparse, bucket 1: 0.75, allowed 0.5"});
  EXPECT_FALSE(job.tuner->outcome().committed);
  EXPECT_EQ(job.tuner->outcome().label, "bf16");
  EXPECT_EQ(job.tuner->chosen().label, "bf16");
}

TEST(Guard, ThenTheSameWithThatBucketSentAsTheBaselineIsConfirmedAndTakesItsPlace) {
  int64_t from = kNever;
  SimulatedJob job = make_job(over_from(from));
  job.run(/*more=*/60);
  from = static_cast<int64_t>(job.steps.size());
  for (int i = 0; i < 400; ++i) job.one_step();
  EXPECT_THAT(job.decided(What::commit), ElementsAre("sparse", kRepaired));
  EXPECT_THAT(job.decided(What::repair), ElementsAre(kRepaired));
  EXPECT_EQ(job.decided(What::race_won).size(), 1U) << "without a search";
  EXPECT_EQ(job.label_in_force(), kRepaired);
  const core::Strategy& strategy = job.strategy_in_force();
  ASSERT_EQ(strategy.buckets.size(), 3U);
  for (size_t b = 0; b < 3; ++b) {
    EXPECT_EQ(strategy.buckets[b].slices, kSparse.strategy.buckets[b].slices);
    EXPECT_EQ(strategy.buckets[b].option, b == 1 ? kHalfOption : kSparse.strategy.buckets[b].option);
  }
  EXPECT_EQ(strategy.order, (std::vector<core::Issue>{{0, 1}, {1, 1}, {2, 1}})) << "the place in the order stays";
  EXPECT_EQ(strategy.in_flight, kSparse.strategy.in_flight);
  const Outcome& outcome = job.tuner->outcome();
  EXPECT_TRUE(outcome.committed);
  EXPECT_NEAR(outcome.gain, 0.35, 1e-9);
  EXPECT_EQ(outcome.pairs, most_pairs(allowed_error(1)));
}

TEST(Guard, WithoutAProvenGainTheBaselineStaysAndOthersAreLookedFor) {
  int64_t from = kNever;
  SimulatedJob job = make_job(over_from(from), {}, {{kRepaired, 101}});
  job.run(/*more=*/60);
  from = static_cast<int64_t>(job.steps.size());
  for (int i = 0; i < 300 && job.decided(What::keep_baseline).empty(); ++i) job.one_step();
  for (int i = 0; i < 5; ++i) job.one_step();
  EXPECT_THAT(job.decided(What::not_confirmed), ElementsAre(kRepaired));
  EXPECT_THAT(job.decided(What::keep_baseline), ElementsAre("no gain was confirmed"));
  EXPECT_EQ(job.label_in_force(), "bf16");
  for (int i = 0; i < 4000; ++i) job.one_step();
  EXPECT_THAT(job.decided(What::commit), ElementsAre("sparse", "merged"));
  EXPECT_EQ(job.label_in_force(), "merged");
}

TEST(Guard, WhatCanNotBePreparedLeavesTheBaseline) {
  int64_t from = kNever;
  JobOptions options = over_from(from);
  options.failing = {kRepaired};
  SimulatedJob job = make_job(options);
  job.run(/*more=*/60);
  from = static_cast<int64_t>(job.steps.size());
  for (int i = 0; i < 100; ++i) job.one_step();
  EXPECT_THAT(job.decided(What::prepare_failed), ElementsAre(kRepaired));
  EXPECT_THAT(job.decided(What::keep_baseline), ElementsAre(HasSubstr("could not be prepared")));
  EXPECT_EQ(job.label_in_force(), "bf16");
}

// The second bucket may exceed its budget at any time: while its strategy is confirmed, or long after.
TEST(Guard, ASecondBucketIsReplacedTheSameWay) {
  for (const int64_t after : {0, 5, 30, 90, 130, 300}) {
    int64_t from = kNever;
    JobOptions options = over_from(from);
    options.excess = [&](int64_t step, const std::string& label) {
      if (label == "sparse" && step >= from) return kError;
      if (label == kRepaired && step >= from + after) return core::Excess{core::Excess::Kind::residual, 0, 40, 30};
      return core::Excess();
    };
    SimulatedJob job = make_job(options);
    job.run(/*more=*/60);
    from = static_cast<int64_t>(job.steps.size());
    for (int i = 0; i < 700; ++i) job.one_step();
    EXPECT_THAT(job.decided(What::repair), ElementsAre(kRepaired, kRepaired + ", 0")) << after;
    EXPECT_THAT(job.decided(What::residual_runs_away), ElementsAre(kRepaired + ", bucket 0: 40, allowed 30")) << after;
    EXPECT_EQ(job.label_in_force(), kRepaired + ", 0") << after;
    for (size_t b = 0; b < 3; ++b) {
      EXPECT_EQ(job.strategy_in_force().buckets[b].option == kHalfOption, b < 2) << after;
    }
  }
}

// A new search may use the compressor for the tensors of other buckets, and not for those of that one.
TEST(Guard, LaterSearchesUseTheCompressorElsewhereOnly) {
  int64_t from = kNever;
  JobOptions options = over_from(from);
  options.factor = [&](int64_t step, const std::string& label) {
    return step > from + 200 && label == kRepaired ? 0.6 : 1;
  };
  SimulatedJob job = make_job(options, {}, {{kRepaired, 101}});
  job.run(/*more=*/60);
  from = static_cast<int64_t>(job.steps.size());
  for (int i = 0; i < 4000; ++i) job.one_step();
  EXPECT_THAT(job.decided(What::not_confirmed), ElementsAre(kRepaired));
  EXPECT_THAT(job.decided(What::commit), ElementsAre("sparse", kRepaired));
  EXPECT_LE(last_step_of(job, "sparse"), from + kLead);
  const std::vector<std::string> measured = job.decided(What::measure);
  EXPECT_THAT(measured, ElementsAre("merged", "sparse", kRepaired, "merged"));
}

TEST(Guard, ACandidateOverItsBudgetIsNotCommittedHoweverFast) {
  const int64_t from = 0;
  SimulatedJob job = make_job(over_from(from));
  job.run(/*more=*/20);
  EXPECT_THAT(job.decided(What::commit), ElementsAre("merged"));
  EXPECT_EQ(job.decided(What::over_error_budget).size(), 1U) << "said once";
  EXPECT_THAT(job.decided(What::confirm), Not(Contains("sparse")));
  const auto runs = std::ranges::count_if(job.steps, [](const auto& step) { return step.label == "sparse"; });
  EXPECT_LE(runs, 12) << "its one trial";
}

// A trial has three steps, and the third is the first that can be over the budget.
TEST(Guard, ATrialOverItsBudgetIsNotToldToThePolicy) {
  JobOptions options;
  options.ranks = 3;
  int64_t first = -1;
  options.excess = [&first](int64_t at, const std::string& label) {
    if (label != "sparse") return core::Excess();
    if (first < 0) first = at;
    return at >= first + 2 ? kError : core::Excess();
  };
  SimulatedJob job(options, times(), {{{kMerged, kSparse}, false}, {{kMerged}, true}}, {kFull, kHalf});
  job.run(/*more=*/20);
  ASSERT_EQ(job.decided(What::over_error_budget).size(), 1U);
  for (const Decision& decision : job.decisions) {
    const bool is_time = decision.what == What::measure && decision.label == "sparse";
    EXPECT_TRUE(!is_time || decision.value == 0) << decision.value;
  }
  EXPECT_THAT(job.decided(What::commit), ElementsAre("merged"));
}

// It may happen anywhere in a tuning: tuning ends well, and the sparse strategy is dropped at once and does not
// return.
TEST(Guard, AtAnyStepOfATuningItIsOut) {
  for (int64_t from = 0; from < 150; from += 3) {
    SimulatedJob job = make_job(over_from(from));
    job.run(/*more=*/30);
    for (int i = 0; i < 100; ++i) job.one_step();
    job.run(/*more=*/10);  // until the end of a search that this may have started
    EXPECT_NE(job.label_in_force(), "sparse") << from;
    EXPECT_EQ(job.tuner->in_force().label, job.label_in_force()) << from;
    EXPECT_LE(last_step_of(job, "sparse"), first_over(job, from) + kLead) << from;
  }
}

// A policy asks for measurements as if nothing had happened; the rest of its proposals continue.
TEST(Guard, AProposalOfWhichNothingMayRunDoesNotEndTheSearch) {
  for (const int again : {1, 5}) {
    std::vector<policies::Proposal> script = {{{kSparse}, false}};
    for (int i = 0; i < again; ++i) script.push_back({{kSparse}, false});
    script.push_back({{kMerged}, false});
    script.push_back({{kMerged}, true});
    const int64_t from = 0;
    SimulatedJob job(over_from(from), times(), script, {kFull, kHalf});
    job.run(/*more=*/20);
    EXPECT_THAT(job.decided(What::commit), ElementsAre("merged")) << again;
  }
}

TEST(Guard, APolicyThatProposesNothingElseIsNotAskedForEver) {
  const int64_t from = 0;
  SimulatedJob job(over_from(from), times(), std::vector<policies::Proposal>(10'000, {{kSparse}, false}),
                   {kFull, kHalf});
  job.run(/*more=*/20);
  EXPECT_THAT(job.decided(What::keep_baseline), ElementsAre("nothing looks faster"));
}

TEST(Guard, AnImportedStrategyOverItsBudgetIsDropped) {
  for (int64_t from = 0; from < 64; ++from) {
    SimulatedJob job = make_job(over_from(from), kSparse);
    job.run(/*more=*/40);
    EXPECT_LE(last_step_of(job, "sparse"), first_over(job, from) + kLead) << from;
    EXPECT_THAT(job.decided(What::over_error_budget), ElementsAre("sparse, bucket 1: 0.75, allowed 0.5")) << from;
    EXPECT_NE(job.label_in_force(), "sparse") << from;
  }
}

constexpr core::Excess kRunaway{.kind = core::Excess::Kind::residual, .value = 31, .allowed = 30};
constexpr core::Excess kBroken{.kind = core::Excess::Kind::broken, .bucket = 2, .value = 0.5, .allowed = 1e-3};

TEST(Guard, APinnedStrategyIsWarnedOfOnceAndStays) {
  for (const core::Excess& excess : {kError, kRunaway}) {
    const int64_t from = 25;
    JobOptions options = over_from(from, excess);
    options.tuner.budget_steps = 0;
    SimulatedJob job = make_job(options, kSparse);
    for (int i = 0; i < 60; ++i) job.one_step();
    EXPECT_EQ(job.label_in_force(), "sparse");
    EXPECT_EQ(job.epoch(), 1);
    ASSERT_EQ(job.decisions.size(), 2U);
    EXPECT_EQ(job.decisions[0].what, excess.kind == kError.kind ? What::over_error_budget : What::residual_runs_away);
    EXPECT_THAT(job.decided(What::warn), ElementsAre("sparse"));
    EXPECT_NEAR(job.decisions[0].value, excess.value, 1e-3);
  }
}

// In a job of fp32 gradients whose fidelity allows 16 bits, and in one whose fidelity does not.
TEST(Guard, APinnedStrategyGivesWayToTheUsersBudgetAndWhereItIsBroken) {
  for (const bool is_broken : {false, true}) {
    for (const bool has_half : {false, true}) {
      const int64_t from = 25;
      JobOptions options = over_from(from, is_broken ? kBroken : kRunaway);
      options.tuner.budget_steps = 0;
      options.tuner.has_error_budget = !is_broken;
      std::vector<Candidate> baselines = {kFull};
      if (has_half) baselines.push_back(kHalf);
      SimulatedJob job(options, times(), {{{kMerged, kSparse}, true}}, baselines, kSparse);
      for (int i = 0; i < 60; ++i) job.one_step();
      EXPECT_EQ(last_step_of(job, "sparse"), from + kLead - 1);
      EXPECT_EQ(job.label_in_force(), has_half ? "bf16" : "fp32");
      EXPECT_EQ(job.tuner->in_force().label, job.label_in_force());
      EXPECT_EQ(job.epoch(), 2);
      EXPECT_THAT(job.decided(What::give_up), ElementsAre("sparse"));
      EXPECT_EQ(job.decided(What::run_instead), std::vector<std::string>(has_half ? 1 : 0, "bf16"));
      EXPECT_EQ(job.decisions[0].what, is_broken ? What::broken : What::residual_runs_away);
      EXPECT_THAT(job.decisions[0].label,
                  HasSubstr(is_broken ? "sparse, bucket 2: 0.5, allowed 0.001" : "sparse, bucket 0: 31, allowed 30"));
    }
  }
}

// Nothing happens for as long as a loss scaler may take to find its scale.
TEST(Guard, AfterManyStepsThatAreNotFiniteTheBaselineRuns) {
  for (const bool is_pinned : {true, false}) {
    JobOptions options;
    int64_t from = kNever, until = kNever;
    options.nonfinite = [&](int64_t step, const std::string&) { return step >= from && step < until; };
    if (is_pinned) options.tuner.budget_steps = 0;
    SimulatedJob job = is_pinned ? make_job(options, kSparse) : make_job(options);
    is_pinned ? static_cast<void>(job.one_step()) : job.run(/*more=*/60);
    const auto go_on = [&](int64_t nonfinite) {
      from = static_cast<int64_t>(job.steps.size());
      until = from + nonfinite;
      for (int i = 0; i < 60; ++i) job.one_step();
    };
    go_on(20);
    ASSERT_EQ(job.label_in_force(), "sparse");
    go_on(40);
    EXPECT_EQ(job.label_in_force(), "bf16");
    EXPECT_THAT(job.decided(What::not_finite), ElementsAre("sparse"));
    EXPECT_THAT(job.decided(What::give_up), ElementsAre("sparse"));
  }
}

TEST(Guard, WhatCanNotBeIsIgnored) {
  for (const core::Excess& excess : {core::Excess{core::Excess::Kind::error, 3, 0.75, 0.5},
                                     core::Excess{core::Excess::Kind::residual, 30'000, 75, 30}}) {
    const int64_t from = 0;
    SimulatedJob job = make_job(over_from(from, excess));
    job.run(/*more=*/60);
    EXPECT_EQ(job.label_in_force(), "sparse");
    EXPECT_THAT(job.decided(What::over_error_budget), IsEmpty());
  }
  JobOptions options;
  options.excess = [](int64_t, const std::string& label) { return label == "sparse" ? core::Excess() : kError; };
  SimulatedJob job = make_job(options);
  job.run(/*more=*/60);
  EXPECT_EQ(job.label_in_force(), "sparse") << "nothing else loses anything";
}

}  // namespace
}  // namespace gradtune::tuner
