// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/contenders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradtune::tuner {
namespace {

using policies::Candidate;
using testing::ElementsAre;

// `length` distinguishes strategies of one kind.
Candidate candidate(const std::string& label, const std::string& codec, int64_t length) {
  Candidate candidate{.strategy = {}, .label = label};
  candidate.strategy.buckets = {{.slices = {{0, 0, length}}, .option = {.codecs = {{codec}}, .steps = {}}}};
  return candidate;
}

std::vector<std::string> labels(const std::vector<Candidate>& candidates) {
  std::vector<std::string> labels;
  for (const Candidate& each : candidates) labels.push_back(each.label);
  return labels;
}

TEST(Contenders, TheBestOfEachKindAreKnownTheFastestFirst) {
  Contenders contenders;
  EXPECT_FALSE(contenders.has_measured());
  contenders.measured(candidate("slow topk", "topk", 1), 90);
  contenders.measured(candidate("bf16", "bf16", 1), 80);
  contenders.measured(candidate("topk", "topk", 2), 70);
  EXPECT_TRUE(contenders.has_measured());
  EXPECT_THAT(labels(contenders.known(nullptr, {})), ElementsAre("topk", "bf16"));
  contenders.start_search();
  EXPECT_FALSE(contenders.has_measured());
  EXPECT_TRUE(contenders.known(nullptr, {}).empty());
}

TEST(Contenders, OfTheKindInForceTheNextBestAreKnownToo) {
  Contenders contenders;
  for (int i = 0; i < 5; ++i) {
    contenders.measured(candidate("topk" + std::to_string(i), "topk", i + 1), 100 - i);
    contenders.measured(candidate("bf16." + std::to_string(i), "bf16", i + 1), 50 - i);
  }
  const core::Strategy committed = candidate("", "topk", 9).strategy;
  EXPECT_THAT(labels(contenders.known(&committed, {})), ElementsAre("bf16.4", "topk4", "topk3", "topk2"));
}

TEST(Contenders, AStrategyThatIsMeasuredAgainCountsAsTheLastTime) {
  Contenders contenders;
  contenders.measured(candidate("a", "topk", 1), 50);
  contenders.measured(candidate("b", "topk", 2), 60);
  contenders.measured(candidate("a", "topk", 1), 70);
  EXPECT_THAT(labels(contenders.known(nullptr, {})), ElementsAre("b"));
}

TEST(Contenders, TheLastTwoThatWereCommittedComeFirst) {
  Contenders contenders;
  contenders.measured(candidate("found", "bf16", 9), 10);
  for (const char* label : {"a", "b", "c", "b"}) contenders.retire(candidate(label, "topk", label[0]));
  EXPECT_THAT(labels(contenders.known(nullptr, {})), ElementsAre("b", "c", "found"));
  contenders.add_leader(candidate("d", "topk", 4));
  contenders.add_former_as_leaders({});
  EXPECT_THAT(labels(contenders.leaders()), ElementsAre("d", "b", "c"));
  contenders.clear_leaders();
  EXPECT_TRUE(contenders.leaders().empty());
}

TEST(Contenders, WhatIsBannedIsNotKnownAnyMore) {
  const Candidate over = candidate("over", "topk", 1), former = candidate("former", "topk", 2);
  Contenders contenders;
  contenders.measured(over, 50);
  contenders.measured(candidate("bf16", "bf16", 1), 60);
  contenders.retire(former);
  Bans bans;
  bans.ban_strategy(core::hash(over.strategy));
  bans.ban_strategy(core::hash(former.strategy));
  contenders.apply(bans);
  EXPECT_THAT(labels(contenders.known(nullptr, bans)), ElementsAre("bf16"));
  bans.ban_codecs({"bf16"}, candidate("", "bf16", 1).strategy.buckets[0]);
  contenders.apply(bans);
  EXPECT_THAT(labels(contenders.known(nullptr, bans)), ElementsAre("bf16, as the baseline: bucket 0"));
}

TEST(Contenders, WhatThePolicyProposedForASlotIsRemembered) {
  Contenders contenders;
  contenders.proposed(3, 17);
  contenders.proposed(3, 18);
  EXPECT_EQ(contenders.proposed_hash(3), 18U);
}

}  // namespace
}  // namespace gradtune::tuner
