// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "policies/space/schemes.h"
#include "tests/policies/jobs.h"

namespace gradtune::policies {
namespace {

using core::Fidelity;

Candidate topk_candidate(const core::GradientTable& table) {
  return {core::uniform(core::cut(table, 1 << 20, 8 << 20, true),
                        core::gather_payloads({"topk", 0.01}, core::Place::device), 2),
          "pinned"};
}

Proposal propose(const Knowledge& knowledge, std::vector<Candidate> fixed, int most_finalists = 7) {
  auto policy = make_policy("fixed", {.fixed = std::move(fixed), .most_finalists = most_finalists});
  return policy.value()->propose(knowledge);
}

TEST(Fixed, ProposesWhatItWasGivenAtOnce) {
  const Knowledge knowledge = testing::knowledge_of(testing::reference_table(), 2, Fidelity::lossy);
  const Candidate pinned = topk_candidate(knowledge.table);
  const Proposal proposal = propose(knowledge, {pinned});
  EXPECT_TRUE(proposal.final);
  ASSERT_EQ(proposal.candidates.size(), 1u);
  EXPECT_EQ(proposal.candidates[0].strategy, pinned.strategy);
  EXPECT_EQ(proposal.candidates[0].label, "pinned");
}

TEST(Fixed, LeavesOutWhatDoesNotFitTheTable) {
  const Knowledge knowledge = testing::knowledge_of(testing::reference_table(), 2, Fidelity::lossy);
  Candidate broken = topk_candidate(knowledge.table);
  broken.strategy.buckets[0].slices[0].length -= 1;
  const Proposal proposal = propose(knowledge, {broken});
  EXPECT_TRUE(proposal.final);
  EXPECT_TRUE(proposal.candidates.empty());
}

TEST(Fixed, LeavesOutWhatTheJobDoesNotAdmit) {
  const Knowledge knowledge = testing::knowledge_of(testing::reference_table(), 2, Fidelity::half);
  EXPECT_TRUE(propose(knowledge, {topk_candidate(knowledge.table)}).candidates.empty());
}

TEST(Fixed, KeepsToTheMostFinalists) {
  const Knowledge knowledge = testing::knowledge_of(testing::reference_table(), 2, Fidelity::lossy);
  EXPECT_EQ(propose(knowledge, std::vector(5, topk_candidate(knowledge.table)), 3).candidates.size(), 3u);
}

}  // namespace
}  // namespace gradtune::policies
