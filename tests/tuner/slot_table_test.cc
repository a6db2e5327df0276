// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/slot_table.h"

#include <gtest/gtest.h>

#include "tests/tuner/simulated_job.h"

namespace gradtune::tuner {
namespace {

using Kind = Command::Kind;
constexpr core::StepReport kWaiting{.prepared = false};
constexpr core::StepReport kPrepared{.prepared = true};
constexpr core::StepReport kFailed{.prepared = false, .failed = true};

SlotTable with_baseline() {
  SlotTable slots(traits());
  slots.add_ready(0, candidate("baseline", 0), /*is_permanent=*/true);
  return slots;
}

TEST(SlotTable, AStrategyHasOneSlot) {
  SlotTable slots = with_baseline();
  EXPECT_EQ(0, slots.slot_of(candidate("under another name", 0)));
  const int32_t slot = slots.slot_of(candidate("a", 1));
  EXPECT_EQ(slot, slots.slot_of(candidate("a", 1)));
  EXPECT_NE(slot, slots.slot_of(candidate("b", 2)));
}

TEST(SlotTable, SlotsAreNotUsedTwice) {
  SlotTable slots = with_baseline();
  const int32_t slot = slots.slot_of(candidate("a", 1));
  slots.release(slot);
  EXPECT_FALSE(slots.contains(slot));
  EXPECT_GT(slots.slot_of(candidate("a", 1)), slot);
}

TEST(SlotTable, PreparesOneAtATime) {
  SlotTable slots = with_baseline();
  const int32_t a = slots.slot_of(candidate("a", 1)), b = slots.slot_of(candidate("b", 2));
  slots.prepare(a);
  slots.prepare(b);
  EXPECT_EQ(a, slots.next_to_prepare());
  EXPECT_EQ((Command{Kind::prepare, a, 0}), slots.start_preparing());
  EXPECT_EQ(a, slots.preparing());
  EXPECT_FALSE(slots.follow(kWaiting).has_value());
  EXPECT_FALSE(slots.at(a).is_ready);
  const auto prepared = slots.follow(kPrepared);
  ASSERT_TRUE(prepared.has_value());
  EXPECT_EQ(a, prepared->slot);
  EXPECT_TRUE(slots.at(a).is_ready && !slots.preparing() && !slots.is_idle());
  EXPECT_EQ(b, slots.start_preparing().slot);
  slots.follow(kPrepared);
  EXPECT_TRUE(slots.is_idle());
}

TEST(SlotTable, PreparesWhatMayRunEarlierFirst) {
  SlotTable slots = with_baseline();
  const int32_t late = slots.slot_of(candidate("late", 1)), a = slots.slot_of(candidate("a", 2)),
                b = slots.slot_of(candidate("b", 3));
  slots.prepare(late, 80);
  slots.prepare(a, 20);
  slots.prepare(b, 20);
  for (const int32_t next : {a, b, late}) {
    EXPECT_EQ(slots.next_to_prepare(), next);
    EXPECT_EQ(slots.start_preparing().slot, next);
    slots.follow(kPrepared);
  }
  slots.prepare(slots.slot_of(candidate("c", 4)), 90);
  slots.release(slots.slot_of(candidate("c", 4)));
  EXPECT_TRUE(slots.is_idle()) << "what is released is not prepared";
}

// Ranks refuse to prepare a slot that they hold, so a repeated request must not reach them again.
TEST(SlotTable, PreparesWhatIsAskedForTwiceOnce) {
  SlotTable slots = with_baseline();
  const int32_t a = slots.slot_of(candidate("a", 1));
  slots.prepare(0);
  EXPECT_TRUE(slots.is_idle()) << "it is ready";
  slots.prepare(a);
  slots.prepare(a);
  slots.start_preparing();
  EXPECT_FALSE(slots.next_to_prepare().has_value()) << "it was asked for already";
  slots.prepare(a);
  EXPECT_FALSE(slots.next_to_prepare().has_value()) << "it is being prepared";
  slots.follow(kPrepared);
  slots.prepare(a);
  EXPECT_TRUE(slots.is_idle());
}

TEST(SlotTable, WhatCanNotBePreparedIsDropped) {
  SlotTable slots = with_baseline();
  const int32_t a = slots.slot_of(candidate("a", 1));
  slots.prepare(a);
  slots.start_preparing();
  EXPECT_FALSE(slots.follow(kWaiting).has_value());
  const auto prepared = slots.follow(kFailed);
  ASSERT_TRUE(prepared.has_value());
  EXPECT_FALSE(prepared->entry.is_ready);
  EXPECT_EQ("a", prepared->entry.candidate->label);
  EXPECT_FALSE(slots.contains(a));
  EXPECT_EQ((Command{Kind::drop, a, 0}), slots.next_drop(0));
}

TEST(SlotTable, WhatIsNeverPreparedIsDroppedToo) {
  SlotTable slots = with_baseline();
  const int32_t a = slots.slot_of(candidate("a", 1));
  slots.prepare(a);
  slots.start_preparing();
  int reports = 1;
  while (!slots.follow(kWaiting)) ++reports;
  EXPECT_EQ(5, reports);
  EXPECT_FALSE(slots.contains(a));
}

TEST(SlotTable, DropsWhatHoldsSomethingAndIsNotInForce) {
  SlotTable slots = with_baseline();
  const int32_t a = slots.slot_of(candidate("a", 1)), b = slots.slot_of(candidate("b", 2));
  slots.prepare(a);
  slots.start_preparing();
  slots.follow(kPrepared);
  slots.release(a);
  slots.release(b);
  EXPECT_FALSE(slots.next_drop(a).has_value());
  EXPECT_EQ((Command{Kind::drop, a, 0}), slots.next_drop(0));
  EXPECT_FALSE(slots.next_drop(0).has_value()) << "b was never prepared";
}

TEST(SlotTable, ReleasingTakesBackWhatIsUnderWay) {
  SlotTable slots = with_baseline();
  const int32_t a = slots.slot_of(candidate("a", 1)), b = slots.slot_of(candidate("b", 2));
  slots.prepare(a);
  slots.prepare(b);
  slots.start_preparing();
  slots.release_all_but({});
  EXPECT_TRUE(slots.is_idle());
  EXPECT_EQ(a, slots.next_drop(0)->slot);
  EXPECT_FALSE(slots.next_drop(0).has_value());
  EXPECT_FALSE(slots.contains(a) || slots.contains(b));
  EXPECT_TRUE(slots.contains(0)) << "the baseline is permanent";
}

TEST(SlotTable, TheSlowestBeyondALimitAreReleased) {
  SlotTable slots = with_baseline();
  slots.measured(0, 1000);
  for (int32_t slot = 1; slot <= 4; ++slot) {
    slots.add_ready(slot, candidate("a", slot), /*is_permanent=*/false);
    if (slot < 4) slots.measured(slot, 100 - slot);
  }
  slots.release_slowest_beyond(3);
  EXPECT_TRUE(slots.contains(1));
  slots.release_slowest_beyond(1);
  EXPECT_TRUE(!slots.contains(1) && !slots.contains(2) && slots.contains(3));
  EXPECT_TRUE(slots.contains(0) && slots.contains(4)) << "permanent; not measured";
}

TEST(SlotTable, KnowsTheFastest) {
  SlotTable slots = with_baseline();
  slots.add_ready(3, candidate("a", 1), /*is_permanent=*/false);
  EXPECT_FALSE(slots.fastest().has_value());
  slots.measured(0, 100);
  EXPECT_EQ(0, slots.fastest());
  slots.measured(3, 90);
  EXPECT_EQ(3, slots.fastest());
  slots.measured(3, 110);
  EXPECT_EQ(0, slots.fastest());
  slots.measured(3, 80);
  slots.forget_time(3);
  EXPECT_EQ(0, slots.fastest());
}

}  // namespace
}  // namespace gradtune::tuner
