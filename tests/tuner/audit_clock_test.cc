// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/audit_clock.h"

#include <gtest/gtest.h>

#include <cmath>

namespace gradtune::tuner {
namespace {

core::StepReport report(double step_ms) {
  return {.slot = 1, .step_ms = step_ms, .compute_ms_max = 60, .compute_ms_min = 60, .slowest_rank = 1};
}

// Steps until there is a finding.
std::optional<Finding> found(AuditClock& clock, double step_ms, int most_steps = 200) {
  for (int step = 0; step < most_steps; ++step) {
    if (const auto finding = clock.record(report(step_ms))) return finding;
  }
  return {};
}

TEST(AuditClock, AnAuditIsDueOnceItsShareOfTheTimePaysForIt) {
  AuditClock clock;
  clock.decided(/*cost_ms=*/1000, /*level_ms=*/100, /*behind_ms=*/20, /*audit_ms=*/600);
  for (int step = 0; step < 1999; ++step) clock.count(100);
  EXPECT_FALSE(clock.is_audit_due());
  for (int step = 0; step < 3; ++step) clock.count(100);
  EXPECT_TRUE(clock.is_audit_due()) << "600 ms are 0.3 % of 2000 steps";
  clock.audited(/*cost_ms=*/60);
  EXPECT_FALSE(clock.is_audit_due());
  for (int step = 0; step < 202; ++step) clock.count(100);
  EXPECT_TRUE(clock.is_audit_due()) << "it may cost what the last one did";
}

TEST(AuditClock, ALookIsDueAfterAnAlarmOnceNotLookingCostAsMuchAsASearch) {
  AuditClock clock;
  clock.decided(1000, 100, 20, 600);
  EXPECT_FALSE(found(clock, 100));
  for (int step = 0; step < 1000; ++step) clock.count(100);
  EXPECT_FALSE(clock.is_look_due()) << "without an alarm";
  clock.decided(1000, 100, 20, 600);
  ASSERT_TRUE(found(clock, 150));
  int steps = 0;
  for (; !clock.is_look_due() && steps < 1000; ++steps) clock.count(150);
  EXPECT_EQ(steps, 40) << "50 ms each, twice the price for the second search in a row";
}

TEST(AuditClock, ASlowRankIsToldAndIsNoAlarm) {
  AuditClock clock;
  clock.decided(0, 100, 20, 600);
  EXPECT_FALSE(found(clock, 100));
  core::StepReport slow = report(150);
  slow.compute_ms_max = 110;
  std::optional<int32_t> rank;
  std::optional<Finding> finding;
  for (int step = 0; step < 200 && !finding; ++step) {
    AuditClock before = clock;
    finding = clock.record(slow);
    if (finding && !(rank = before.take_straggler())) ADD_FAILURE() << "known before there is evidence for an alarm";
    if (rank) {
      EXPECT_FALSE(before.take_straggler()) << "ranks are watched anew";
    }
  }
  ASSERT_TRUE(finding);
  EXPECT_EQ(finding->kind, Finding::Kind::straggler);
  EXPECT_EQ(rank, 1);
  clock.count(1e9);
  EXPECT_FALSE(clock.is_look_due());
}

TEST(AuditClock, KnowsHowFarWhatIsCommittedHasMovedSinceTheLastSearch) {
  AuditClock clock;
  clock.committed(80, 100);
  EXPECT_EQ(clock.moved(), 0);
  clock.compared(/*baseline=*/1, /*committed_ms=*/90, /*baseline_ms=*/100, /*most_price_ms=*/1e9);
  EXPECT_EQ(clock.audited_baseline(), 1);
  EXPECT_NEAR(clock.moved(), std::log(90.0 / 80), 1e-12);
  clock.searched();
  EXPECT_EQ(clock.moved(), 0);
}

}  // namespace
}  // namespace gradtune::tuner
