// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/bans.h"

#include <gtest/gtest.h>

#include <vector>

namespace gradtune::tuner {
namespace {

using policies::Candidate;

core::Option compressed(const std::string& codec) { return {.codecs = {{codec}}, .steps = {}}; }

// A bucket for each tensor, with these compressors in turn.
Candidate candidate(const std::vector<std::string>& codecs) {
  Candidate candidate{.strategy = {}, .label = "it"};
  for (size_t b = 0; b < codecs.size(); ++b) {
    candidate.strategy.buckets.push_back(
        {.slices = {{static_cast<int32_t>(b), 0, 10}}, .option = compressed(codecs[b])});
  }
  return candidate;
}

const Candidate kBoth = candidate({"topk", "topk"});

TEST(Bans, NothingIsBannedAtFirst) {
  const Bans bans;
  EXPECT_EQ(bans.without_banned(kBoth).label, "it");
  EXPECT_EQ(bans.admitted(kBoth)->strategy, kBoth.strategy);
}

TEST(Bans, ACompressorIsBannedForTheTensorsOfTheBucketAlone) {
  Bans bans;
  bans.ban_codecs({"topk"}, kBoth.strategy.buckets[1]);
  const Candidate admitted = *bans.admitted(kBoth);
  EXPECT_EQ(admitted.label, "it, as the baseline: bucket 1");
  EXPECT_EQ(admitted.strategy.buckets[0], kBoth.strategy.buckets[0]);
  EXPECT_NE(admitted.strategy.buckets[1].option, kBoth.strategy.buckets[1].option);
  EXPECT_EQ(bans.without_banned(admitted).label, admitted.label) << "once is enough";
  EXPECT_EQ(bans.without_banned(candidate({"topk", "randk"})).label, "it") << "another compressor";
}

TEST(Bans, AStrategyIsNotAdmittedWhereItIsBannedAfterWhatIsTakenOutOfIt) {
  Bans bans;
  bans.ban_codecs({"topk"}, kBoth.strategy.buckets[1]);
  bans.ban_strategy(core::hash(bans.without_banned(kBoth).strategy));
  EXPECT_FALSE(bans.admitted(kBoth));
  EXPECT_FALSE(bans.has_strategy(core::hash(kBoth.strategy)));
}

TEST(Bans, TheLabelNamesBucketsAsLongAsItIsShort) {
  Candidate last{.strategy = candidate(std::vector<std::string>(200, "topk")).strategy, .label = "it"};
  for (int32_t b = 0; b < 3; ++b) last = sent_as_baseline(last, b, {});
  EXPECT_EQ(last.label, "it, as the baseline: bucket 0, 1, 2");
  for (int32_t b = 3; b < 200; ++b) last = sent_as_baseline(last, b, {});
  EXPECT_TRUE(last.label.ends_with(", ...")) << last.label;
  EXPECT_LT(last.label.size(), 180U);
}

}  // namespace
}  // namespace gradtune::tuner
