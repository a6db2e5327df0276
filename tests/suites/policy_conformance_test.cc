// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests that every policy of the table must pass, on any input. It proposes strategies that fit the job and that
// ranks can compile, stays within fidelity and allow-list, decides the same from the same input, and terminates.
#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "engine/core/rng.h"
#include "engine/exec/program.h"
#include "policies/cost/forward_pass.h"
#include "policies/policy.h"
#include "policies/space/baseline.h"
#include "tests/policies/jobs.h"
#include "tests/policies/timeline_job.h"

namespace gradtune::policies {
namespace {

using core::DType;
using core::Fidelity;
using testing::make_table;
using testing::tensor;

constexpr int kMostFinalists = 5;
constexpr size_t kMostProposals = 100;
constexpr size_t kMostMeasurements = 64;

std::map<std::string, core::GradientTable> tables() {
  std::vector<core::TensorInfo> many;
  for (int t = 0; t < 300; ++t) many.push_back(tensor("t" + std::to_string(t), 1 + t % 7 * 5000, 100 * t));
  return {
      {"empty", {}},
      {"one tensor", make_table({tensor("a", 3'000'000)})},
      {"one element", make_table({tensor("a", 1)})},
      {"no elements", make_table({tensor("a", 0), tensor("b", 0)})},
      {"an empty tensor among others", make_table({tensor("a", 5, 0), tensor("b", 0, 1), tensor("c", 700'000, 2)})},
      {"mixed dtypes",
       make_table({tensor("a", 100'000, 0, DType::bf16), tensor("b", 100'001, 10), tensor("c", 17, 20, DType::f16),
                   tensor("d", 1'000'000, 30, DType::bf16), tensor("e", 3, 40)})},
      {"double precision among others",
       make_table({tensor("a", 100'000, 0, DType::f64), tensor("b", 300'001, 10), tensor("c", 40'000, 20, DType::f64),
                   tensor("d", 17, 30), tensor("e", 3, 40, DType::f64)})},
      {"double precision", make_table({tensor("a", 2'000'000, 0, DType::f64), tensor("b", 300, 10, DType::f64)})},
      {"16 bits", make_table({tensor("a", 100'000, 0, DType::bf16), tensor("b", 100'001, 10, DType::bf16)})},
      {"many tensors", make_table(many)},
      {"reference", testing::reference_table()},
  };
}

// Step times that a job might show, and some that no job will.
using Times = std::function<std::function<double(const core::Strategy&)>()>;
std::map<std::string, Times> all_times() {
  const auto constant = [](double ms) { return [ms] { return [ms](const core::Strategy&) { return ms; }; }; };
  return {
      {"constant", constant(100)},
      {"zero", constant(0)},
      {"huge", constant(1e308)},
      {"tiny", constant(1e-308)},
      {"rising", [] { return [ms = 1.0](const core::Strategy&) mutable { return ms *= 1.1; }; }},
      {"falling", [] { return [ms = 1e6](const core::Strategy&) mutable { return ms *= 0.9; }; }},
      {"more buckets are better",
       [] { return [](const core::Strategy& s) { return 1000.0 / static_cast<double>(s.buckets.size()); }; }},
      {"fewer buckets are better",
       [] { return [](const core::Strategy& s) { return static_cast<double>(s.buckets.size()); }; }},
      {"random",
       [] { return [rng = core::Rng(3)](const core::Strategy&) mutable { return 1 + 100 * rng.uniform(); }; }},
      {"random extremes",
       [] {
         return [rng = core::Rng(4)](const core::Strategy&) mutable { return rng.below(2) == 0 ? 1e-300 : 1e300; };
       }},
  };
}

// Tells if the job reports the times of its steps' operations.
enum class Timing { none, all, nonsense };

// The duration of a step: from made-up rates, or arbitrary.
TimedRun timed(const core::Strategy& strategy, const Knowledge& knowledge, Timing timing, core::Rng& rng) {
  const testing::TimelineJob job{.knowledge = knowledge,
                                 .truth = testing::made_up_cost(knowledge.ranks.size, 50, knowledge.codecs)};
  TimedRun timed = job.timed(strategy, 0.1, rng);
  if (timing == Timing::all) return timed;
  for (TimedOp& step : timed.steps) {
    step.begin_us = 1e12 * rng.uniform();
    step.end_us = rng.below(2) == 0 ? step.begin_us : 1e15;
  }
  return timed;
}

// All proposals of a policy, in order; a final proposal is the last.
std::vector<Proposal> run(Policy& policy, Knowledge knowledge, const std::function<double(const core::Strategy&)>& time,
                          Timing timing = Timing::none) {
  core::Rng rng(7);
  std::vector<Proposal> proposals;
  if (timing != Timing::none && knowledge.table.numel() > 0) {
    for (const Candidate& baseline : baselines(knowledge.table, Fidelity::exact)) {
      knowledge.timed.push_back(timed(baseline.strategy, knowledge, timing, rng));
    }
  }
  while (proposals.size() < kMostProposals) {
    proposals.push_back(policy.propose(knowledge));
    if (proposals.back().final) break;
    for (const Candidate& candidate : proposals.back().candidates) {
      if (time && timing != Timing::none && knowledge.table.numel() > 0) {
        knowledge.timed.push_back(timed(candidate.strategy, knowledge, timing, rng));
      }
      if (time) policy.learn({core::hash(candidate.strategy), time(candidate.strategy), 5});
    }
  }
  return proposals;
}

class PolicyConformance : public ::testing::TestWithParam<std::string> {
 protected:
  static Knowledge knowledge(core::GradientTable table, int world_size, Fidelity fidelity, int host_threads = 0) {
    Knowledge job = testing::knowledge_of(std::move(table), world_size, fidelity);
    job.host_threads = host_threads;
    job.baseline_ms = 120;
    job.compute_ms = 50;
    return job;
  }

  // The baselines serve as the strategies that `fixed` is given.
  static std::unique_ptr<Policy> make(const Knowledge& job) {
    return std::move(
               make_policy(GetParam(), {.fixed = baselines(job.table, job.fidelity), .most_finalists = kMostFinalists}))
        .value();
  }

  static void expect_sound(const Knowledge& job, const std::vector<Proposal>& proposals) {
    ASSERT_FALSE(proposals.empty());
    ASSERT_TRUE(proposals.back().final) << "did not come to an end";
    EXPECT_LE(proposals.back().candidates.size(), static_cast<size_t>(kMostFinalists));
    size_t measured = 0;
    for (const Proposal& proposal : proposals) {
      if (!proposal.final) {
        EXPECT_FALSE(proposal.candidates.empty());
        measured += proposal.candidates.size();
      }
      std::set<uint64_t> different;
      for (const Candidate& candidate : proposal.candidates) {
        EXPECT_TRUE(different.insert(core::hash(candidate.strategy)).second) << "proposed twice: " << candidate.label;
        EXPECT_FALSE(candidate.label.empty());
        expect_sound(job, candidate);
      }
    }
    EXPECT_LE(measured, kMostMeasurements);
  }

  static void expect_same(const std::vector<Proposal>& first, const std::vector<Proposal>& second) {
    ASSERT_EQ(first.size(), second.size());
    for (size_t p = 0; p < first.size(); ++p) {
      ASSERT_EQ(first[p].candidates.size(), second[p].candidates.size());
      for (size_t c = 0; c < first[p].candidates.size(); ++c) {
        EXPECT_EQ(first[p].candidates[c].strategy, second[p].candidates[c].strategy);
        EXPECT_EQ(first[p].candidates[c].label, second[p].candidates[c].label);
      }
    }
  }

  static void expect_sound(const Knowledge& job, const Candidate& candidate) {
    const core::Status status = core::validate(candidate.strategy, job.table);
    EXPECT_TRUE(status.ok()) << candidate.label << ": " << status.error().message;
    const auto first_small = static_cast<int32_t>(job.table.first_small());
    for (const core::Bucket& bucket : candidate.strategy.buckets) {
      EXPECT_TRUE(bucket.due == core::Due::backward ||
                  (job.forward_overlap &&
                   std::ranges::all_of(bucket.slices,
                                       [&](const core::Slice& slice) {
                                         return job.table.tensors[static_cast<size_t>(slice.tensor)].read_us >= 0;
                                       })))
          << candidate.label << ": a bucket is late that may not be";
      EXPECT_TRUE(core::needed_fidelity(bucket.option, job.traits) < Fidelity::lossy ||
                  std::ranges::all_of(bucket.slices, [&](const auto& slice) { return slice.tensor < first_small; }))
          << candidate.label << ": small tensors are sent with loss";
      for (const core::CompressorSpec& codec : bucket.option.codecs) {
        EXPECT_THAT(job.codecs, ::testing::Contains(codec)) << candidate.label;
      }
      for (const core::Step& step : bucket.option.steps) {
        EXPECT_TRUE(step.place == core::Place::device || job.host_threads > 0) << candidate.label;
      }
    }
    const auto program =
        exec::compile(candidate.strategy, job.table, {.rank = job.ranks.size - 1, .size = job.ranks.size});
    EXPECT_TRUE(program.ok()) << candidate.label << ": " << program.error().message;
  }
};

TEST_P(PolicyConformance, ProposalsAreSoundForEveryJob) {
  for (const auto& [name, table] : tables()) {
    for (int world_size : {1, 2, 3, 16}) {
      for (Fidelity fidelity : {Fidelity::exact, Fidelity::half, Fidelity::lossy}) {
        for (int host_threads : {0, 2}) {
          SCOPED_TRACE(name + ", " + std::to_string(world_size) + " ranks, " + std::string(core::to_string(fidelity)));
          const Knowledge job = knowledge(table, world_size, fidelity, host_threads);
          expect_sound(job, run(*make(job), job, all_times().at("random")()));
        }
      }
    }
  }
}

TEST_P(PolicyConformance, ProposalsAreSoundForEveryAllowList) {
  const std::vector<std::vector<core::CompressorSpec>> lists = {
      {},
      {{"none"}},
      {{"bf16"}},
      {{"topk", 0.01}},
      {{"randk", 0.01}},
      {{"none"}, {"fp16"}, {"bf16"}, {"topk", 0.5}, {"topk", 0.01}, {"efsignsgd", 64}}};
  for (const auto& codecs : lists) {
    for (int world_size : {2, 16}) {
      for (Timing timing : {Timing::none, Timing::all}) {
        Knowledge job = knowledge(testing::reference_table(), world_size, Fidelity::lossy, 1);
        job.codecs = codecs;
        const auto policy = std::move(make_policy(GetParam(), {.most_finalists = kMostFinalists})).value();
        expect_sound(job, run(*policy, job, all_times().at("random")(), timing));
      }
    }
  }
}

TEST_P(PolicyConformance, EndsWhateverTheMeasurements) {
  for (const auto& [name, times] : all_times()) {
    SCOPED_TRACE(name);
    for (const auto& [table_name, table] : tables()) {
      const Knowledge job = knowledge(table, 2, Fidelity::lossy);
      expect_sound(job, run(*make(job), job, times()));
    }
  }
}

TEST_P(PolicyConformance, ProposalsAreSoundWhateverOperationsTook) {
  for (const auto& [name, table] : tables()) {
    for (int world_size : {2, 3, 16}) {
      for (Fidelity fidelity : {Fidelity::exact, Fidelity::lossy}) {
        for (Timing timing : {Timing::all, Timing::nonsense}) {
          SCOPED_TRACE(name + ", " + std::to_string(world_size) + " ranks, " + std::string(core::to_string(fidelity)));
          const Knowledge job = knowledge(table, world_size, fidelity, 1);
          for (const char* times : {"random", "constant", "falling"}) {
            expect_sound(job, run(*make(job), job, all_times().at(times)(), timing));
          }
        }
      }
    }
  }
}

TEST_P(PolicyConformance, ProposalsAreSoundForStepsThatGoOnIntoTheNextForwardPass) {
  for (const auto& [name, table] : tables()) {
    for (const bool forward_overlap : {false, true}) {
      for (const bool all_are_read : {false, true}) {
        SCOPED_TRACE(name);
        Knowledge job = knowledge(table, 2, Fidelity::lossy, 1);
        assume_forward(job.table, 0.5);
        for (size_t t = 0; t < job.table.tensors.size() && !all_are_read; t += 3) job.table.tensors[t].read_us = -1;
        job.forward_overlap = forward_overlap;
        expect_sound(job, run(*make(job), job, all_times().at("random")(), Timing::all));
      }
    }
  }
}

TEST_P(PolicyConformance, EndsWhenNothingCanRun) {
  const Knowledge job = knowledge(testing::reference_table(), 2, Fidelity::lossy, 1);
  for (Timing timing : {Timing::none, Timing::all}) {
    const auto proposals = run(*make(job), job, nullptr, timing);
    expect_sound(job, proposals);
    // A strategy that a policy wanted to measure and never could is not worth a race.
    EXPECT_TRUE(proposals.size() == 1 || proposals.back().candidates.empty());
  }
}

TEST_P(PolicyConformance, MeasurementsOfOthersAreIgnored) {
  const Knowledge job = knowledge(testing::reference_table(), 2, Fidelity::half);
  const auto policy = make(job), disturbed = make(job);
  disturbed->learn({12345, 1, 5});
  const auto time = all_times().at("random");
  const auto proposals = run(*policy, job, time());
  const auto others = run(*disturbed, job, [&, known = time()](const core::Strategy& strategy) mutable {
    disturbed->learn({12345, 1, 5});
    return known(strategy);
  });
  expect_same(proposals, others);
}

TEST_P(PolicyConformance, SameKnowledgeAndTimesGiveTheSameProposals) {
  for (const auto& [name, table] : tables()) {
    const Knowledge job = knowledge(table, 3, Fidelity::lossy, 1);
    const auto first = run(*make(job), job, all_times().at("random")(), Timing::all),
               second = run(*make(job), job, all_times().at("random")(), Timing::all);
    SCOPED_TRACE(name);
    expect_same(first, second);
  }
}

TEST_P(PolicyConformance, AFinalProposalStays) {
  const Knowledge job = knowledge(testing::reference_table(), 2, Fidelity::half);
  const auto policy = make(job);
  const Proposal last = run(*policy, job, all_times().at("random")()).back();
  const Proposal again = policy->propose(job);
  EXPECT_TRUE(again.final);
  ASSERT_EQ(again.candidates.size(), last.candidates.size());
  for (size_t c = 0; c < last.candidates.size(); ++c)
    EXPECT_EQ(again.candidates[c].strategy, last.candidates[c].strategy);
}

TEST_P(PolicyConformance, ForOneRankOrNoElementsThereIsNothingToRace) {
  if (GetParam() == "fixed") return;  // it does as it is told
  for (const Knowledge& job :
       {knowledge(testing::reference_table(), 1, Fidelity::lossy), knowledge({}, 2, Fidelity::lossy)}) {
    const Proposal proposal = make(job)->propose(job);
    EXPECT_TRUE(proposal.final);
    EXPECT_TRUE(proposal.candidates.empty());
  }
}

std::vector<std::string> policy_names() {
  std::vector<std::string> names;
  for (const PolicyRow& row : policy_table()) names.emplace_back(row.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Table, PolicyConformance, ::testing::ValuesIn(policy_names()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace gradtune::policies
