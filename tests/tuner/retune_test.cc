// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests the tuner after a decision, when the job changes: alarms and new searches. audit_test.cc tests audits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/tuner/changing_job.h"

namespace gradtune::tuner {
namespace {

using policies::Candidate;
using testing::AnyOf;
using testing::Contains;
using testing::ElementsAre;
using testing::Ge;
using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;

TEST(Retune, ASlowerLinkLeadsToTheStrategyThatIsBestThere) {
  ChangingJob job({.before = kFast, .after = kSlow});
  job.decide();
  ASSERT_EQ(job->label_in_force(), "bf16 merged");
  job.steps(300);
  EXPECT_THAT(job->decided(What::drift), IsEmpty());
  const int64_t changed = static_cast<int64_t>(job->steps.size());
  job.change_now();
  job.steps(400);
  EXPECT_THAT(job->decided(What::ranking_changed), ElementsAre("topk"));
  EXPECT_THAT(job->decided(What::commit), ElementsAre("bf16 merged", "topk"));
  EXPECT_EQ(job->label_in_force(), "topk");
  EXPECT_LE(job.settled("topk") - changed, 290);
  const Outcome& outcome = job->tuner->outcome();
  EXPECT_TRUE(outcome.committed);
  EXPECT_NEAR(outcome.gain, 1 - 160.0 / 800, 0.02) << "against the faster baseline of that link";
  EXPECT_EQ(job->held.size(), 3U);
}

TEST(Retune, GradientsThatAreFullerThanTheyWereLeadToANewSearch) {
  JobOfSearches job({.before = kFast, .after = kFast}, {{kMerged}, {kMerged, kSparse}});
  ASSERT_EQ(job->tuner->stage(), Stage::watch);
  core::GradientTable table;
  table.tensors.push_back({.name = "table", .shape = {1000, 8}, .numel = 8000});
  job->tuner->learn_table(table);
  EXPECT_THAT(job->decided(What::density), IsEmpty()) << "nothing was known before";
  table.tensors[0].content = {.row = 8, .of_one = 0.1, .of_all = 0.2};
  job->tuner->learn_table(table);
  job->run(/*more=*/100);
  EXPECT_THAT(job->decided(What::density), ElementsAre("table"));
  EXPECT_THAT(job->decided(What::look_again), SizeIs(1));
  EXPECT_EQ(job->tuner->stage(), Stage::watch) << "and that once";
  const auto measured = job->decided(What::measure);
  EXPECT_THAT(measured, Contains("topk")) << "which only the second search finds";
}

TEST(Retune, AFasterLinkLeadsBackToWhatIsLessLossy) {
  ChangingJob job({.before = kSlow, .after = kFast});
  job.decide();
  ASSERT_EQ(job->label_in_force(), "topk");
  job.steps(300);
  const int64_t changed = static_cast<int64_t>(job->steps.size());
  job.change_now();
  job.steps(700);
  EXPECT_THAT(job->decided(What::drop_committed), ElementsAre("topk"));
  const auto dropped = std::ranges::find(job->decisions, What::drop_committed, &Decision::what);
  EXPECT_LE(dropped->step - changed, 150);
  EXPECT_THAT(job->label_in_force(), AnyOf("bf16 merged", "bf16"));
}

TEST(Retune, WhatIsHiddenShowsInTheTimeOfCollectives) {
  std::map<std::string, double> hidden = kFast;
  hidden["topk"] = 160;  // no faster than on the slow link: that time was hidden there
  Change change{.before = kSlow, .after = hidden};
  ChangingJob job(change);
  job.decide();
  job.steps(300);
  job.change_now();
  job.steps(400);
  EXPECT_EQ(job->label_in_force(), "topk") << "nothing told of the change but audits, which take their time";

  int64_t at = kNever;
  JobOptions options;
  options.noise = kSmall;
  options.comm_ms = [&](int64_t step) { return step < at ? 80.0 : 10.0; };
  options.factor = [&](int64_t step, const std::string& label) {
    return step < at ? 1 : change.after.at(label) / change.before.at(label);
  };
  SimulatedJob told(options, kSlow, {{{kMerged, kSparse}, false}, {{kMerged, kSparse}, true}}, {kFull, kHalf});
  while (told.tuner->stage() != Stage::watch) told.one_step();
  for (int i = 0; i < 300; ++i) told.one_step();
  at = static_cast<int64_t>(told.steps.size());
  for (int i = 0; i < 500; ++i) told.one_step();
  EXPECT_THAT(told.decided(What::link), ElementsAre("topk"));
  EXPECT_EQ(told.label_in_force(), "bf16 merged");
}

// Everything got slower by the same factor: the order is unchanged, and nothing is searched again.
TEST(Retune, AnUnchangedRankingKeepsWhatRuns) {
  std::map<std::string, double> throttled = kSlow;
  for (auto& [label, ms] : throttled) ms *= 1.3;
  ChangingJob job({.before = kSlow, .after = throttled});
  job.decide();
  job.steps(300);
  job.change_now();
  job.steps(1'500);
  EXPECT_THAT(job->decided(What::drift), ElementsAre("topk"));
  EXPECT_THAT(job->decided(What::audit), Contains("topk"));
  EXPECT_THAT(job->decided(What::commit), ElementsAre("topk"));
  EXPECT_THAT(job->decided(What::ranking_changed), IsEmpty());
  EXPECT_THAT(job->decided(What::relation_changed), IsEmpty());
  EXPECT_EQ(job->label_in_force(), "topk");
  EXPECT_TRUE(job->tuner->outcome().committed);
}

TEST(Retune, WhereTheBaselineStayedASlowerLinkIsSearchedToo) {
  const std::map<std::string, double> nothing = {{"fp32", 120}, {"bf16", 100}, {"bf16 merged", 100}, {"topk", 125}};
  ChangingJob job({.before = nothing, .after = kSlow}, Noise{.cv = 0.01});
  job.decide();
  ASSERT_EQ(job->label_in_force(), "bf16");
  job.steps(300);
  job.change_now();
  job.steps(400);
  EXPECT_EQ(job->label_in_force(), "topk");
}

// The committed strategy and the arms left from the ranking's race have places beside the policy's own choices,
// since arms cost memory and steps on every rank.
TEST(Retune, ARaceAfterAChangeHasNoMoreArmsThanTheFirst) {
  std::map<std::string, double> fast = kFast, slow = kSlow;
  std::vector<Candidate> arms;
  for (int i = 0; i < 7; ++i) {
    arms.push_back(candidate("arm" + std::to_string(i), 20 + i, "bf16"));
    fast[arms.back().label] = 105;
    slow[arms.back().label] = 790;
  }
  JobOfSearches job({.before = fast, .after = slow}, {{kMerged, kSparse}, arms});
  ASSERT_EQ(job->label_in_force(), "bf16 merged");
  job.change(&Change::at);
  const std::set<std::string> raced = job.raced_after(What::ranking_changed);
  EXPECT_THAT(raced, SizeIs(8)) << "the baseline is one of them";
  EXPECT_THAT(raced, Contains("bf16 merged"));
  EXPECT_THAT(raced, Contains("topk"));
}

// It is still the best measured strategy, but by another margin. So others may be better still.
TEST(Retune, WhereWhatRunsIsToTheBaselineWhatItWasNotThereIsANewSearchAtOnce) {
  const Candidate sliced = candidate("fp32 sliced", 4, "none", 4);
  std::map<std::string, double> fast = kFast, slow = kSlow;
  fast["fp32 sliced"] = 125;
  slow["fp32 sliced"] = 200;
  slow["bf16 merged"] = 300;
  slow["topk"] = 400;
  JobOfSearches job({.before = fast, .after = slow}, {{kMerged, kSparse}, {sliced}});
  ASSERT_EQ(job->label_in_force(), "bf16 merged");
  job.change(&Change::at);
  EXPECT_THAT(job->decided(What::relation_changed), ElementsAre("bf16 merged"));
  EXPECT_THAT(job.raced_after(What::relation_changed), UnorderedElementsAre("bf16", "bf16 merged", "fp32 sliced"));
  EXPECT_EQ(job->label_in_force(), "fp32 sliced");
}

TEST(Retune, WhatChangedTheRankingRacesWhatTheNextSearchFinds) {
  JobOfSearches job({.before = kFast, .after = kSlow}, {{kMerged, kSparse}, {kMerged}});
  ASSERT_EQ(job->label_in_force(), "bf16 merged");
  job.change(&Change::at);
  EXPECT_THAT(job->decided(What::ranking_changed), ElementsAre("topk"));
  EXPECT_EQ(job->label_in_force(), "topk");
}

TEST(Retune, BothThatWereLeftAtTheEndRaceWhatTheNextSearchFinds) {
  const Candidate sliced = candidate("fp32 sliced", 4, "none", 4);
  std::map<std::string, double> fast = kFast, slow = kSlow;
  fast["fp32 sliced"] = 135;
  slow["fp32 sliced"] = 164;
  JobOfSearches job({.before = fast, .after = slow}, {{kMerged, kSparse, sliced}, {kMerged}});
  ASSERT_EQ(job->label_in_force(), "bf16 merged");
  job.change(&Change::at);
  const std::set<std::string> raced = job.raced_after(What::ranking_changed);
  EXPECT_THAT(raced, Contains("topk"));
  EXPECT_THAT(raced, Contains("fp32 sliced"));
  EXPECT_THAT(job->label_in_force(), AnyOf("topk", "fp32 sliced"));
}

TEST(Retune, WhatWasCommittedBeforeIsTriedWhenTheLinkIsAsItWasThen) {
  JobOfSearches job({.before = kFast, .after = kSlow}, {{kMerged, kSparse}, {kSparse}});
  job.change(&Change::at);
  ASSERT_EQ(job->label_in_force(), "topk");
  job.change(&Change::back_at);
  EXPECT_EQ(job->label_in_force(), "bf16 merged") << "the last search did not find it";
}

TEST(Retune, ASlowRankIsNamedAndNotBlamedOnTheStrategy) {
  int64_t slow_from = kNever;
  JobOptions options;
  options.ranks = 4;
  options.noise = kSmall;
  options.compute_ms = [&](int64_t step, int rank) { return step >= slow_from && rank == 2 ? 110.0 : 60.0; };
  options.factor = [&](int64_t step, const std::string&) { return step >= slow_from ? 1.5 : 1.0; };
  SimulatedJob job(options, kFast, {{{kMerged, kSparse}, true}}, {kFull, kHalf});
  while (job.tuner->stage() != Stage::watch) job.one_step();
  for (int i = 0; i < 300; ++i) job.one_step();
  slow_from = static_cast<int64_t>(job.steps.size());
  for (int i = 0; i < 300; ++i) job.one_step();
  ASSERT_THAT(job.decided(What::straggler), ElementsAre("bf16 merged"));
  EXPECT_EQ(job.decisions.back().value, 2);
  EXPECT_THAT(job.decided(What::audit), IsEmpty());
}

TEST(Retune, ASlowRankIsNamedByAnAuditThatComesBeforeTheAlarm) {
  JobOptions options;
  options.ranks = 4;
  options.noise = kSmall;
  int64_t slow_from = kNever;
  options.compute_ms = [&](int64_t step, int rank) { return step >= slow_from && rank == 2 ? 110.0 : 60.0; };
  options.factor = [&](int64_t step, const std::string&) { return step >= slow_from ? 1.5 : 1.0; };
  const auto next_audit = [&] {
    SimulatedJob job(options, kFast, {{{kMerged, kSparse}, true}}, {kFull, kHalf});
    while (job.tuner->stage() != Stage::watch) job.one_step();
    while (job.tuner->stage() != Stage::audit) job.one_step();
    EXPECT_EQ(job.decided(What::straggler).size(), slow_from == kNever ? 0U : 1U);
    EXPECT_THAT(job.decided(What::drift), IsEmpty());
    return static_cast<int64_t>(job.steps.size());
  };
  const int64_t by_the_clock = next_audit();
  slow_from = by_the_clock - 12;
  EXPECT_LE(next_audit(), by_the_clock);
}

TEST(Retune, TurnedOffItOnlyTells) {
  ChangingJob job({.before = kFast, .after = kSlow}, kSmall, 1, {.retune = false});
  job.decide();
  job.steps(300);
  job.change_now();
  job.steps(300);
  EXPECT_THAT(job->decided(What::drift), ElementsAre("bf16 merged"));
  EXPECT_EQ(job->label_in_force(), "bf16 merged");
  EXPECT_EQ(job->steps.back().stage, Stage::watch);
}

// --- over many runs --------------------------------------------------------------------------------------------------

// The link goes up and down: reactions cost no more than the baseline would have taken.
TEST(Retune, AnOscillatingLinkCostsLittle) {
  const std::map<std::string, double> good = {{"fp32", 120}, {"bf16", 100}, {"bf16 merged", 92}, {"topk", 150}};
  const std::map<std::string, double> bad = {{"fp32", 160}, {"bf16", 140}, {"bf16 merged", 190}, {"topk", 155}};
  for (int64_t period : {40, 100, 250, 600}) {
    double total_ms = 0, baseline_ms = 0;
    for (uint64_t seed = 0; seed < 5; ++seed) {
      JobOptions options;
      options.noise = kSmall;
      options.seed = seed;
      const auto is_bad = [&](int64_t step) { return step > 400 && step / period % 2 == 1; };
      options.factor = [&](int64_t step, const std::string& label) {
        return is_bad(step) ? bad.at(label) / good.at(label) : 1;
      };
      SimulatedJob job(options, good, {{{kMerged, kSparse}, false}, {{kMerged, kSparse}, true}}, {kFull, kHalf});
      for (int i = 0; i < 8'000; ++i) job.one_step();
      for (const SimulatedJob::Step& step : job.steps) {
        total_ms += step.ms;
        baseline_ms += step.ms / (is_bad(step.step) ? bad.at(step.label) : good.at(step.label)) *
                       (is_bad(step.step) ? bad.at("bf16") : good.at("bf16"));
      }
    }
    EXPECT_LE(total_ms, 1.02 * baseline_ms) << "period " << period;
  }
}

// A job may be tuned again any number of times: at most one run of twenty commits a strategy that is not faster.
TEST(Retune, IdenticalCandidatesAreCommittedInAtMostFivePercentOfRunsThatAreTunedAgain) {
  const int kRuns = 300;
  int committed = 0, looks = 0;
  for (uint64_t seed = 0; seed < kRuns; ++seed) {
    std::map<std::string, double> ms = {{"baseline", 100}};
    std::vector<Candidate> arms;
    for (int i = 0; i < 7; ++i) {
      arms.push_back(candidate("arm" + std::to_string(i), 10 + i, i % 2 == 0 ? "bf16" : ""));
      ms[arms.back().label] = 100;
    }
    JobOptions options;
    options.seed = seed;
    options.noise = {.cv = 0.05, .spikes = 0.02, .drift = 0.02, .transient = 1.3};
    options.factor = [](int64_t step, const std::string&) { return step / 700 % 2 == 1 ? 1.4 : 1.0; };
    SimulatedJob job(options, ms, {{arms, false}, {arms, true}}, {candidate("baseline", 0)});
    for (int i = 0; i < 7'000; ++i) job.one_step();
    committed += job.decided(What::commit).empty() ? 0 : 1;
    looks += static_cast<int>(job.decided(What::look_again).size());
  }
  EXPECT_GE(looks, kRuns) << "or nothing was tried";
  RecordProperty("committed", committed);
  RecordProperty("looks", looks);
  EXPECT_LE(committed, kRuns * 0.05 + 3 * std::sqrt(kRuns * 0.05 * 0.95));
}

TEST(Retune, ChangesOfTheLinkEndWithTheBestStrategyInMostRuns) {
  int good = 0;
  const int kRuns = 100;
  for (uint64_t seed = 0; seed < kRuns; ++seed) {
    ChangingJob job({.before = kFast, .after = kSlow}, {.cv = 0.05, .spikes = 0.02, .drift = 0.02, .transient = 1.3},
                    seed);
    job.decide();
    job.steps(300);
    job.change_now();
    job.steps(500);
    const bool is_found = job->label_in_force() == "topk";
    job.change_back_now();
    job.steps(1'000);
    good += is_found && job->true_ms(job->label_in_force()) <= 110 ? 1 : 0;
  }
  EXPECT_GE(good, 0.9 * kRuns);
}

}  // namespace
}  // namespace gradtune::tuner
