// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <set>

#include "policies/space/schemes.h"
#include "tests/policies/jobs.h"
#include "tests/policies/step_model.h"

namespace gradtune::policies {
namespace {

using core::Fidelity;
using testing::make_table;
using testing::tensor;

std::unique_ptr<Policy> exhaustive() { return std::move(make_policy("exhaustive", {.most_finalists = 3})).value(); }

TEST(Exhaustive, MeasuresEveryProgramOnEveryGroupingOfFewTensors) {
  const Knowledge job =
      testing::knowledge_of(make_table({tensor("a", 10), tensor("b", 20), tensor("c", 30)}), 2, Fidelity::exact);
  const Proposal proposal = exhaustive()->propose(job);
  EXPECT_FALSE(proposal.final);
  EXPECT_EQ(proposal.candidates.size(),
            3u * 4u);  // all_reduce, gather and two_step on abc, a|bc, ab|c, a|b|c
  std::set<uint64_t> different;
  for (const Candidate& candidate : proposal.candidates) different.insert(core::hash(candidate.strategy));
  EXPECT_EQ(different.size(), proposal.candidates.size());
}

TEST(Exhaustive, CutsManyTensorsIntoEqualSlices) {
  std::vector<core::TensorInfo> tensors(9, tensor("t", 800));
  const Knowledge job = testing::knowledge_of(make_table(tensors), 2, Fidelity::exact);
  const Proposal proposal = exhaustive()->propose(job);
  ASSERT_EQ(proposal.candidates.size(), 3u * 8u);
  for (const core::Bucket& bucket : proposal.candidates[7].strategy.buckets) EXPECT_EQ(core::numel(bucket), 900);
}

TEST(Exhaustive, OfTooManyMeasuresAnEvenChoiceAndSaysSo) {
  std::vector<core::TensorInfo> tensors(6, tensor("t", 800));
  const Knowledge job = testing::knowledge_of(make_table(tensors), 2, Fidelity::lossy);
  const Proposal proposal = exhaustive()->propose(job);
  EXPECT_EQ(proposal.candidates.size(), 64u);
  for (const Candidate& candidate : proposal.candidates) {
    EXPECT_THAT(candidate.label, ::testing::EndsWith("(64 of 256 measured)"));
  }
  // Every program occurs.
  std::set<std::string> programs;
  for (const Candidate& candidate : proposal.candidates)
    programs.insert(core::to_string(candidate.strategy.buckets[0].option));
  EXPECT_EQ(programs.size(), admitted_schemes(job).size());
}

TEST(Exhaustive, TheBestOfTheMeasuredGoToTheRace) {
  const core::GradientTable table = make_table(
      {tensor("a", 1000, 0), tensor("b", 4'000'000, 4000), tensor("c", 1000, 20'000), tensor("d", 100, 30'000)});
  const testing::StepModel model{.table = table, .traits = testing::known_traits()};
  const Knowledge job = testing::knowledge_of(table, 2, Fidelity::half);
  const auto policy = exhaustive();
  std::vector<double> times_ms;
  for (const Candidate& candidate : policy->propose(job).candidates) {
    times_ms.push_back(model.step_ms(candidate.strategy));
    policy->learn({core::hash(candidate.strategy), times_ms.back(), 5});
  }
  std::sort(times_ms.begin(), times_ms.end());
  const Proposal proposal = policy->propose(job);
  EXPECT_TRUE(proposal.final);
  ASSERT_EQ(proposal.candidates.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(model.step_ms(proposal.candidates[i].strategy), times_ms[i]);
}

}  // namespace
}  // namespace gradtune::policies
