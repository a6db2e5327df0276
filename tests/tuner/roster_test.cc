// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/roster.h"

#include <gtest/gtest.h>

#include "tests/tuner/simulated_job.h"

namespace gradtune::tuner {
namespace {

using Kind = Command::Kind;
constexpr core::StepReport kWaiting{.prepared = false};
constexpr core::StepReport kPrepared{.prepared = true};
constexpr core::StepReport kFailed{.prepared = false, .failed = true};

Roster with_baseline() {
  Roster roster(traits());
  roster.add_ready(0, candidate("baseline", 0), /*is_permanent=*/true);
  return roster;
}

TEST(Roster, AStrategyHasOneSlot) {
  Roster roster = with_baseline();
  EXPECT_EQ(0, roster.slot_of(candidate("under another name", 0)));
  const int32_t slot = roster.slot_of(candidate("a", 1));
  EXPECT_EQ(slot, roster.slot_of(candidate("a", 1)));
  EXPECT_NE(slot, roster.slot_of(candidate("b", 2)));
}

TEST(Roster, SlotsAreNotUsedTwice) {
  Roster roster = with_baseline();
  const int32_t slot = roster.slot_of(candidate("a", 1));
  roster.release(slot);
  EXPECT_FALSE(roster.contains(slot));
  EXPECT_GT(roster.slot_of(candidate("a", 1)), slot);
}

TEST(Roster, PreparesOneAtATime) {
  Roster roster = with_baseline();
  const int32_t a = roster.slot_of(candidate("a", 1)), b = roster.slot_of(candidate("b", 2));
  roster.prepare(a);
  roster.prepare(b);
  EXPECT_EQ(a, roster.next_to_prepare());
  EXPECT_EQ((Command{Kind::prepare, a, 0}), roster.start_preparing());
  EXPECT_EQ(a, roster.preparing());
  EXPECT_FALSE(roster.follow(kWaiting).has_value());
  EXPECT_FALSE(roster.at(a).is_ready);
  const auto prepared = roster.follow(kPrepared);
  ASSERT_TRUE(prepared.has_value());
  EXPECT_EQ(a, prepared->slot);
  EXPECT_TRUE(roster.at(a).is_ready && !roster.preparing() && !roster.is_idle());
  EXPECT_EQ(b, roster.start_preparing().slot);
  roster.follow(kPrepared);
  EXPECT_TRUE(roster.is_idle());
}

// Ranks refuse to prepare what they hold, so asking again must not say it to them again.
TEST(Roster, PreparesWhatIsAskedForTwiceOnce) {
  Roster roster = with_baseline();
  const int32_t a = roster.slot_of(candidate("a", 1));
  roster.prepare(0);
  EXPECT_TRUE(roster.is_idle()) << "it is ready";
  roster.prepare(a);
  roster.prepare(a);
  roster.start_preparing();
  EXPECT_FALSE(roster.next_to_prepare().has_value()) << "it was asked for already";
  roster.prepare(a);
  EXPECT_FALSE(roster.next_to_prepare().has_value()) << "it is being prepared";
  roster.follow(kPrepared);
  roster.prepare(a);
  EXPECT_TRUE(roster.is_idle());
}

TEST(Roster, WhatCanNotBePreparedIsDropped) {
  Roster roster = with_baseline();
  const int32_t a = roster.slot_of(candidate("a", 1));
  roster.prepare(a);
  roster.start_preparing();
  EXPECT_FALSE(roster.follow(kWaiting).has_value());
  const auto prepared = roster.follow(kFailed);
  ASSERT_TRUE(prepared.has_value());
  EXPECT_FALSE(prepared->entry.is_ready);
  EXPECT_EQ("a", prepared->entry.candidate->label);
  EXPECT_FALSE(roster.contains(a));
  EXPECT_EQ((Command{Kind::drop, a, 0}), roster.next_drop(0));
}

TEST(Roster, WhatIsNeverPreparedIsDroppedToo) {
  Roster roster = with_baseline();
  const int32_t a = roster.slot_of(candidate("a", 1));
  roster.prepare(a);
  roster.start_preparing();
  int reports = 1;
  while (!roster.follow(kWaiting)) ++reports;
  EXPECT_EQ(5, reports);
  EXPECT_FALSE(roster.contains(a));
}

TEST(Roster, DropsWhatHoldsSomethingAndIsNotInForce) {
  Roster roster = with_baseline();
  const int32_t a = roster.slot_of(candidate("a", 1)), b = roster.slot_of(candidate("b", 2));
  roster.prepare(a);
  roster.start_preparing();
  roster.follow(kPrepared);
  roster.release(a);
  roster.release(b);
  EXPECT_FALSE(roster.next_drop(a).has_value());
  EXPECT_EQ((Command{Kind::drop, a, 0}), roster.next_drop(0));
  EXPECT_FALSE(roster.next_drop(0).has_value()) << "b was never prepared";
}

TEST(Roster, ReleasingTakesBackWhatIsUnderWay) {
  Roster roster = with_baseline();
  const int32_t a = roster.slot_of(candidate("a", 1)), b = roster.slot_of(candidate("b", 2));
  roster.prepare(a);
  roster.prepare(b);
  roster.start_preparing();
  roster.release_all_but({});
  EXPECT_TRUE(roster.is_idle());
  EXPECT_EQ(a, roster.next_drop(0)->slot);
  EXPECT_FALSE(roster.next_drop(0).has_value());
  EXPECT_FALSE(roster.contains(a) || roster.contains(b));
  EXPECT_TRUE(roster.contains(0)) << "the baseline is permanent";
}

TEST(Roster, TheSlowestBeyondALimitAreReleased) {
  Roster roster = with_baseline();
  roster.measured(0, 1000);
  for (int32_t slot = 1; slot <= 4; ++slot) {
    roster.add_ready(slot, candidate("a", slot), /*is_permanent=*/false);
    if (slot < 4) roster.measured(slot, 100 - slot);
  }
  roster.release_slowest_beyond(3);
  EXPECT_TRUE(roster.contains(1));
  roster.release_slowest_beyond(1);
  EXPECT_TRUE(!roster.contains(1) && !roster.contains(2) && roster.contains(3));
  EXPECT_TRUE(roster.contains(0) && roster.contains(4)) << "permanent; not measured";
}

TEST(Roster, KnowsTheFastest) {
  Roster roster = with_baseline();
  roster.add_ready(3, candidate("a", 1), /*is_permanent=*/false);
  EXPECT_FALSE(roster.fastest().has_value());
  roster.measured(0, 100);
  EXPECT_EQ(0, roster.fastest());
  roster.measured(3, 90);
  EXPECT_EQ(3, roster.fastest());
  roster.measured(3, 110);
  EXPECT_EQ(0, roster.fastest());
  roster.measured(3, 80);
  roster.forget_time(3);
  EXPECT_EQ(0, roster.fastest());
}

}  // namespace
}  // namespace gradtune::tuner
