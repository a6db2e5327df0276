// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Every decision of `mergecomp` on the reference job, as text, so that review shows a change. To record the policy's
// present decisions, run this test with GRADTUNE_UPDATE_GOLDEN=1.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "policies/space/baseline.h"
#include "tests/policies/jobs.h"
#include "tests/policies/step_model.h"

namespace gradtune::policies {
namespace {

std::string trajectory(core::Fidelity fidelity, double gigabits) {
  const core::GradientTable table = testing::reference_table();
  const testing::StepModel model{
      .table = table, .traits = testing::known_traits(), .link_bytes_per_us = 119.5 * gigabits};
  Knowledge job = testing::knowledge_of(table, 2, fidelity);
  std::string text = fmt::format("{}, {} Gbit/s\n", core::to_string(fidelity), gigabits);
  for (const Candidate& baseline : baselines(table, fidelity)) {
    job.baseline_ms = model.step_ms(baseline.strategy);  // the 16-bit form is the faster
    text += fmt::format("  {:<36} {:7.1f} ms\n", baseline.label, job.baseline_ms);
  }
  const auto policy = std::move(make_policy("mergecomp", {})).value();
  for (Proposal proposal = policy->propose(job);; proposal = policy->propose(job)) {
    for (const Candidate& candidate : proposal.candidates) {
      const double ms = model.step_ms(candidate.strategy);
      text += fmt::format("  {} {:<28} {:7.1f} ms\n", proposal.final ? "races  " : "measure", candidate.label, ms);
      policy->learn({core::hash(candidate.strategy), ms, 5});
    }
    if (!proposal.final) continue;
    text += "  the first: " + core::describe(proposal.candidates.front().strategy, table);
    for (const core::Bucket& bucket : proposal.candidates.front().strategy.buckets) {
      const core::Slice& last = bucket.slices.back();
      text += fmt::format("    {:>9} elements to {} of {}\n", core::numel(bucket), last.offset + last.length,
                          table.tensors[static_cast<size_t>(last.tensor)].name);
    }
    return text + "\n";
  }
}

TEST(MergeCompGolden, ReferenceJob) {
  std::string text;
  for (double gigabits : {1.0, 0.2}) {
    for (core::Fidelity fidelity : {core::Fidelity::exact, core::Fidelity::half, core::Fidelity::lossy}) {
      text += trajectory(fidelity, gigabits);
    }
  }
  const std::string path = GRADTUNE_GOLDEN "/mergecomp_reference_job.txt";
  if (std::getenv("GRADTUNE_UPDATE_GOLDEN") != nullptr) std::ofstream(path) << text;
  std::ifstream file(path);
  const std::string golden{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(text, golden) << "GRADTUNE_UPDATE_GOLDEN=1 takes the new decisions";
}

}  // namespace
}  // namespace gradtune::policies
