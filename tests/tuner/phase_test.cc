// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/phase.h"

#include <gtest/gtest.h>

namespace gradtune::tuner {
namespace {

TEST(Phase, IsTheStageThatPeopleSee) {
  using Before = Observing::Before;
  const Confirmation confirmation(1, {0}, 6, 0.05, core::Rng(1));
  EXPECT_EQ(stage_of(Observing{Before::search}), Stage::observe);
  EXPECT_EQ(stage_of(Observing{Before::looking}), Stage::observe);
  EXPECT_EQ(stage_of(Searching{}), Stage::partition);
  EXPECT_EQ(stage_of(Racing{Racing::Among::found}), Stage::race);
  EXPECT_EQ(stage_of(Racing{Racing::Among::known}), Stage::race);
  EXPECT_EQ(stage_of(Confirming{}), Stage::confirm);
  EXPECT_EQ(stage_of(Watching{}), Stage::watch);
  EXPECT_EQ(stage_of(Auditing{false, confirmation}), Stage::audit);
}

TEST(Phase, AnImportedStrategyIsSoUntilItIsConfirmed) {
  using Before = Observing::Before;
  for (const Phase& phase : {Phase(Observing{Before::opening}), Phase(Observing{Before::imported}),
                             Phase(Racing{Racing::Among::imported})}) {
    EXPECT_TRUE(is_importing(phase));
    EXPECT_EQ(stage_of(phase), Stage::imported);
  }
  const Phase confirming = Confirming{.origin = Confirming::Origin::imported};
  EXPECT_TRUE(is_importing(confirming));
  EXPECT_EQ(stage_of(confirming), Stage::confirm);
  EXPECT_FALSE(is_importing(Confirming{.origin = Confirming::Origin::repair}));
  EXPECT_FALSE(is_importing(Watching{}));
}

}  // namespace
}  // namespace gradtune::tuner
