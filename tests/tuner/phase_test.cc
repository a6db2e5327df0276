// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/phase.h"

#include <gtest/gtest.h>

#include "tuner/tuner.h"

namespace gradtune::tuner {
namespace {

TEST(Phase, IsTheStageThatPeopleSee) {
  using Before = Observing::Before;
  EXPECT_EQ(stage_of(Observing(Before::search, 1)), Stage::observe);
  EXPECT_EQ(stage_of(Observing(Before::looking, 1)), Stage::observe);
  EXPECT_EQ(stage_of(Searching()), Stage::partition);
  EXPECT_EQ(stage_of(Racing(Racing::Among::found, {})), Stage::race);
  EXPECT_EQ(stage_of(Racing(Racing::Among::known, {})), Stage::race);
  EXPECT_EQ(stage_of(Confirming(Confirming::Origin::race, 3, 6)), Stage::confirm);
  EXPECT_EQ(stage_of(Watching(0)), Stage::watch);
  EXPECT_EQ(stage_of(Auditing(/*has_cause=*/false, Confirmation(1, {0}, 6, 0.05, core::Rng(1)))), Stage::audit);
}

TEST(Phase, AnImportedStrategyIsSoUntilItIsConfirmed) {
  using Before = Observing::Before;
  const Phase importing[] = {Observing(Before::opening, 1), Observing(Before::imported, 1),
                             Racing(Racing::Among::imported, {})};
  for (const Phase& phase : importing) {
    EXPECT_TRUE(is_importing(phase));
    EXPECT_EQ(stage_of(phase), Stage::imported);
  }
  const Phase confirming = Confirming(Confirming::Origin::imported, kImportedSlot, 6);
  EXPECT_TRUE(is_importing(confirming));
  EXPECT_EQ(stage_of(confirming), Stage::confirm);
  EXPECT_FALSE(is_importing(Confirming(3, Confirming::Repair())));
  EXPECT_FALSE(is_importing(Watching(0)));
}

}  // namespace
}  // namespace gradtune::tuner
