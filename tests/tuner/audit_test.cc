// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests audits of the committed strategy against the baseline: when they run, what they cost, and what they drop.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "tests/tuner/changing_job.h"

namespace gradtune::tuner {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::Ge;
using testing::IsEmpty;
using testing::SizeIs;

TEST(Audit, AScheduledAuditDropsWhatIsNotFasterAnyMore) {
  // The baseline got faster, and the committed strategy did not change.
  std::map<std::string, double> after = kFast;
  after["bf16"] = 85;
  ChangingJob job({.before = kFast, .after = after});
  job.decide();
  ASSERT_EQ(job->label_in_force(), "bf16 merged");
  job.change_now();
  job.steps(8'000);
  EXPECT_THAT(job->decided(What::drift), IsEmpty());
  EXPECT_EQ(job->decided(What::drop_committed).front(), "bf16 merged");
  EXPECT_EQ(job->label_in_force(), "bf16");
}

TEST(Audit, AnAuditDropsWhatLosesMoreThanTheBaselineForATie) {
  std::map<std::string, double> after = kFast;
  after["topk"] = 0.985 * after["bf16"];
  ChangingJob job({.before = kSlow, .after = after}, kQuiet);
  job.decide();
  ASSERT_EQ(job->label_in_force(), "topk");
  job.steps(300);
  const int64_t changed = static_cast<int64_t>(job->steps.size());
  job.change_now();
  job.steps(500);
  ASSERT_THAT(job->decided(What::drop_committed), ElementsAre("topk"));
  const auto dropped = std::ranges::find(job->decisions, What::drop_committed, &Decision::what);
  EXPECT_LE(dropped->step - changed, 150);
  EXPECT_EQ(job->label_in_force(), "bf16 merged");
}

// At 2 % the first audit would drop it.
TEST(Audit, WhatIsConfirmedAtATieWithTheBaselineIsNotCommittedWhereItLosesMore) {
  std::map<std::string, double> tie = kSlow;
  tie["topk"] = 0.98 * tie["bf16"];
  ChangingJob job({.before = kSlow, .after = tie}, kQuiet);
  while (job->tuner->stage() != Stage::confirm) job->one_step();
  ASSERT_THAT(job->decided(What::confirm), ElementsAre("topk"));
  job.change_now();
  job.decide();
  job.steps(10);
  EXPECT_THAT(job->decided(What::not_confirmed), ElementsAre("topk"));
  EXPECT_THAT(job->decided(What::commit), IsEmpty());
  EXPECT_EQ(job->label_in_force(), "bf16");
}

// The committed strategy just passed the audit after the alarm, and nothing else looks faster.
TEST(Audit, WhatHeldStaysWhereNothingLooksFasterThanTheBaseline) {
  const std::map<std::string, double> after = {{"fp32", 180}, {"bf16", 140}, {"bf16 merged", 139.3}, {"topk", 180}};
  ChangingJob job({.before = kFast, .after = after}, kQuiet);
  job.decide();
  ASSERT_EQ(job->label_in_force(), "bf16 merged");
  job.steps(300);
  job.change_now();
  job.steps(1'000);
  EXPECT_THAT(job->decided(What::look_again), SizeIs(Ge(1U)));
  EXPECT_THAT(job->decided(What::ranking_holds), Contains("bf16 merged"));
  EXPECT_THAT(job->decided(What::drop_committed), IsEmpty());
  EXPECT_EQ(job->tuner->chosen().label, "bf16 merged");
}

// An audit runs the strategy in force for 32 scored steps: if they counted as tuning, nothing would be left for the
// search.
TEST(Audit, ASearchAfterAnAuditOfWhatBecameSlowHasItsBudget) {
  const std::map<std::string, double> before = {{"fp32", 400}, {"bf16", 250}, {"bf16 merged", 240}, {"topk", 180}};
  const std::map<std::string, double> after = {{"fp32", 120}, {"bf16", 100}, {"bf16 merged", 90}, {"topk", 148}};
  ChangingJob job({.before = before, .after = after}, kSmall, 1, {.budget_share = 0.08});
  job.decide();
  ASSERT_EQ(job->label_in_force(), "topk");
  job.steps(300);
  job.change_now();
  job.steps(600);
  ASSERT_THAT(job->decided(What::drop_committed), ElementsAre("topk"));
  EXPECT_EQ(job->label_in_force(), "bf16 merged");
}

// Its steps are compared with those from before the audit.
TEST(Audit, AChangeDuringAnAuditIsNoticed) {
  std::map<std::string, double> throttled = kFast;
  for (auto& [label, ms] : throttled) ms *= 1.3;
  for (const int into : {0, 10, 20, 40}) {
    ChangingJob job({.before = kFast, .after = throttled}, kSmall);
    job.decide();
    job.steps(100);
    while (job->tuner->stage() != Stage::audit) job->one_step();
    job.steps(into);
    ASSERT_EQ(job->tuner->stage(), Stage::audit);
    job.change_now();
    while (job->tuner->stage() == Stage::audit) job->one_step();
    job.steps(50);
    EXPECT_THAT(job->decided(What::drift), ElementsAre("bf16 merged")) << into;
  }
}

TEST(Audit, AuditsTakeAtMostTheirShareOfTheTime) {
  ChangingJob job({.before = kSlow, .after = kSlow}, kQuiet);
  job.decide();
  job.steps(40'000);
  double total_ms = 0, audit_ms = 0;
  for (const SimulatedJob::Step& step : job->steps) {
    total_ms += step.ms;
    if (step.stage == Stage::audit) audit_ms += std::max(0.0, step.ms - 160);
  }
  EXPECT_THAT(job->decided(What::audit), SizeIs(Ge(2U)));
  EXPECT_THAT(job->decided(What::drop_committed), IsEmpty());
  EXPECT_LE(audit_ms, 0.004 * total_ms);
}

// --- over many runs --------------------------------------------------------------------------------------------------

TEST(Audit, QuietJobsAreLeftAlone) {
  int searched = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    ChangingJob job({.before = kSlow, .after = kSlow}, {.cv = 0.05, .spikes = 0.02, .transient = 1.3}, seed);
    job.decide();
    job.steps(3'000);
    searched += static_cast<int>(job->decided(What::look_again).size());
    EXPECT_EQ(job->label_in_force(), "topk") << seed;
  }
  EXPECT_EQ(searched, 0);
}

// Six pairs of blocks may well miss a gain of a few percent by chance, and audits repeat.
TEST(Audit, ASmallGainOutlastsManyAudits) {
  const int kRuns = 100;
  for (const auto& [label, gain] : {std::pair<std::string, double>("bf16 merged", 0.04), {"topk", 0.05}}) {
    std::map<std::string, double> ms = {{"fp32", 150}, {"bf16", 100}, {"bf16 merged", 100}, {"topk", 120}};
    ms[label] = 100 * (1 - gain);
    int committed = 0, kept = 0;
    for (uint64_t seed = 0; seed < kRuns; ++seed) {
      ChangingJob job({.before = ms, .after = ms}, {.cv = 0.05, .spikes = 0.02, .transient = 1.3}, seed);
      job.decide();
      if (job->tuner->chosen().label != label) continue;
      ++committed;
      job.steps(10'000);
      kept += job->decided(What::drop_committed).empty() ? 1 : 0;
    }
    RecordProperty(label, kept);
    EXPECT_GE(committed, kRuns / 2) << label;
    EXPECT_GE(kept, 0.95 * committed) << label;
  }
}

}  // namespace
}  // namespace gradtune::tuner
