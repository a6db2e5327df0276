// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests policy `auto`, on jobs whose truth is the timeline under rates that it does not see.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "policies/cost/forward_pass.h"
#include "policies/cost/program_cost.h"
#include "policies/planner.h"
#include "policies/space/admission.h"
#include "tests/policies/jobs.h"
#include "tests/policies/timeline_job.h"

namespace gradtune::policies {
namespace {

using core::Fidelity;
using testing::TimelineJob;

constexpr double kNoise = 0.03;

// The result of a policy that receives the job's measurements.
struct Ended {
  std::vector<std::vector<Candidate>> rounds = {};
  std::vector<Candidate> finalists = {};
  double ms = 0;  // true time of the finalist with the fastest measurement, or of the baseline if that is faster

  bool uses(const std::string& codec, size_t round) const {
    return std::ranges::any_of(rounds.at(round),
                               [&](const Candidate& c) { return c.label.find(codec) != std::string::npos; });
  }
};

Ended run(const TimelineJob& job, uint64_t seed) {
  core::Rng rng(seed);
  Knowledge knowledge = job.observed(kNoise, rng);
  const auto policy = std::move(make_policy("auto", {})).value();
  Ended ended;
  for (;;) {
    Proposal proposal = policy->propose(knowledge);
    if (proposal.final) {
      ended.finalists = std::move(proposal.candidates);
      break;
    }
    for (const Candidate& candidate : proposal.candidates) {
      EXPECT_TRUE(candidate.predicted_ms);
      for (int step = 0; step < 3; ++step) knowledge.timed.push_back(job.timed(candidate.strategy, kNoise, rng));
      const double ms = job.step_ms(candidate.strategy) * (1 + kNoise / 2 * rng.normal());
      policy->learn({core::hash(candidate.strategy), ms, 3});
    }
    ended.rounds.push_back(std::move(proposal.candidates));
  }
  ended.ms = job.baseline_ms();
  if (!ended.finalists.empty()) ended.ms = std::min(ended.ms, job.step_ms(ended.finalists[0].strategy));
  return ended;
}

TimelineJob reference_job(double link_bytes_per_us, Fidelity fidelity) {
  TimelineJob job{.knowledge = testing::knowledge_of(testing::reference_table(), 4, fidelity)};
  job.knowledge.host_threads = 1;
  job.truth = testing::made_up_cost(4, link_bytes_per_us, job.knowledge.codecs);
  return job;
}

enum class Types { fp32, bf16, mixed };

core::DType draw(Types types, core::Rng& rng) {
  return types == Types::fp32   ? core::DType::f32
         : types == Types::bf16 ? core::DType::bf16
                                : core::kDTypes[rng.below(3)];
}

// A few tensors, which become ready in about the time that they take to send.
TimelineJob random_job(core::Rng& rng, size_t tensors, int host_threads, Types types) {
  std::vector<core::TensorInfo> infos;
  double ready_us = 0;
  for (size_t t = 0; t < tensors; ++t) {
    const auto numel = static_cast<int64_t>(2e4 * std::pow(100.0, rng.uniform()));
    infos.push_back(testing::tensor("t" + std::to_string(t), numel, ready_us, draw(types, rng)));
    ready_us += 8000 * rng.uniform();
  }
  const int ranks = 2 << rng.below(3);
  TimelineJob job{.knowledge = testing::knowledge_of(testing::make_table(infos), ranks, Fidelity::half)};
  job.knowledge.host_threads = host_threads;
  if (rng.below(2) == 0) job.knowledge.fidelity = Fidelity::lossy;
  job.knowledge.codecs = testing::default_codecs(job.knowledge.fidelity);
  job.truth = testing::made_up_cost(ranks, 20 * std::pow(50.0, rng.uniform()), job.knowledge.codecs);
  return job;
}

// The true optimum is over whole tensors; plans may also cut them.
void expect_near_the_best(int jobs, size_t tensors, int host_threads, Types types = Types::fp32) {
  int within_3_percent = 0, gained = 0;
  double sum = 0;
  for (int seed = 0; seed < jobs; ++seed) {
    core::Rng rng(static_cast<uint64_t>(seed));
    const TimelineJob job = random_job(rng, tensors, host_threads, types);
    const double best_ms = job.best_ms(), ms = run(job, static_cast<uint64_t>(seed)).ms;
    EXPECT_LE(ms, 1.06 * best_ms) << "seed " << seed;
    within_3_percent += ms <= 1.03 * best_ms ? 1 : 0;
    gained += ms < 0.9 * job.baseline_ms() ? 1 : 0;
    sum += ms / best_ms;
  }
  EXPECT_GE(within_3_percent, 0.95 * jobs);
  EXPECT_LE(sum / jobs, 1.01);
  EXPECT_GE(gained, jobs / (types == Types::fp32 ? 4 : 10)) << "there is something to find";
}

TEST(AutoPolicy, AutoEndsNearTheBestOfAllStrategies) { expect_near_the_best(40, 3, 0); }
TEST(AutoPolicy, AutoEndsNearTheBestOfAllStrategiesWithTheHost) { expect_near_the_best(40, 2, 2); }

TEST(AutoPolicy, AutoEndsNearTheBestFor16BitGradients) { expect_near_the_best(40, 3, 0, Types::bf16); }
TEST(AutoPolicy, AutoEndsNearTheBestForGradientsOfSeveralTypes) { expect_near_the_best(40, 3, 0, Types::mixed); }

// Before it ran top-k looks cheap. Here it costs 30 times as much as copying, which is known in the second round.
TEST(AutoPolicy, ACodecThatIsSlowerThanItLookedIsFoundOut) {
  TimelineJob job = reference_job(200, Fidelity::lossy);
  for (CodecRate& rate : job.truth.codecs) {
    if (rate.codec.name != "topk") continue;
    for (double* us : {&rate.encode_element_us, &rate.decode_element_us, &rate.decode_byte_us}) *us *= 5;
  }
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const Ended ended = run(job, seed);
    ASSERT_GE(ended.rounds.size(), 2u);
    EXPECT_TRUE(ended.uses("topk", 0)) << "it is tried";
    const Candidate& first = ended.rounds[0][0];
    EXPECT_LT(*first.predicted_ms, 0.8 * job.step_ms(first.strategy)) << "and is slower than predicted";
    for (const Candidate& later : ended.rounds.back()) {
      EXPECT_NEAR(*later.predicted_ms, job.step_ms(later.strategy), 0.1 * job.step_ms(later.strategy)) << later.label;
    }
    TimelineJob without = job;
    without.knowledge.codecs = testing::default_codecs(Fidelity::half);
    EXPECT_LE(ended.ms, 1.03 * run(without, seed).ms);
  }
}

// The plan of a published algorithm with known rates.
double planned_ms(const TimelineJob& job, std::string_view planner) {
  const Knowledge& knowledge = job.knowledge;
  const auto options = tree_options({.ranks = job.truth.ranks,
                                     .host_threads = knowledge.host_threads,
                                     .fidelity = knowledge.fidelity,
                                     .codecs = knowledge.codecs,
                                     .traits = knowledge.traits,
                                     .numel = knowledge.table.numel()});
  const auto model = make_program_cost(job.truth, options, knowledge.traits, knowledge.table.numel());
  return job.step_ms(plan(planner, {*model.value(), knowledge}).value().strategy);
}

TEST(AutoPolicy, AutoIsNoWorseThanEspressoWithKnownRates) {
  for (const double link_bytes_per_us : {20, 100, 400}) {
    for (const Fidelity fidelity : {Fidelity::half, Fidelity::lossy}) {
      const TimelineJob job = reference_job(link_bytes_per_us, fidelity);
      const double goal_ms = std::min(planned_ms(job, "espresso"), job.baseline_ms());
      for (uint64_t seed = 0; seed < 5; ++seed) EXPECT_LE(run(job, seed).ms, 1.03 * goal_ms);
    }
  }
}

// VGG16 on a link that is busy for longer than the ranks compute.
TimelineJob forward_job(bool forward_overlap) {
  core::GradientTable table = testing::read_trace("vgg16");
  assume_forward(table, 0.5);
  TimelineJob job{.knowledge = testing::knowledge_of(table, 4, Fidelity::exact)};
  job.knowledge.forward_overlap = forward_overlap;
  job.truth = testing::made_up_cost(4, 3'000, job.knowledge.codecs);
  for (CollectiveRate& rate : job.truth.collectives) rate.message_us = 5;  // planner usbyte merges nothing
  return job;
}

bool has_late(const core::Strategy& strategy) {
  return std::ranges::any_of(strategy.buckets, [](const auto& bucket) { return bucket.due == core::Due::forward; });
}

TEST(AutoPolicy, LateBucketsAreProposedWhereTheJobAllowsThemAndPay) {
  const Ended without = run(forward_job(false), 3), with = run(forward_job(true), 3);
  for (const auto& round : without.rounds) {
    for (const Candidate& candidate : round) EXPECT_FALSE(has_late(candidate.strategy)) << candidate.label;
  }
  EXPECT_TRUE(std::ranges::any_of(with.rounds.at(0), [](const Candidate& c) { return has_late(c.strategy); }));
  ASSERT_FALSE(with.finalists.empty());
  EXPECT_TRUE(has_late(with.finalists[0].strategy)) << with.finalists[0].label;
  EXPECT_THAT(with.finalists[0].label, ::testing::EndsWith(" late"));
  EXPECT_LT(with.ms, 0.95 * without.ms);
}

TEST(AutoPolicy, AutoIsNoWorseThanUsbyteWithKnownRates) {
  const TimelineJob job = forward_job(true);
  EXPECT_LE(run(job, 3).ms, 1.01 * planned_ms(job, "usbyte"));
}

TEST(AutoPolicy, WithoutTimingsAutoIsMergecomp) {
  const Knowledge knowledge = reference_job(100, Fidelity::half).knowledge;
  const auto automatic = std::move(make_policy("auto", {})).value(),
             other = std::move(make_policy("mergecomp", {})).value();
  const Proposal found = automatic->propose(knowledge), expected = other->propose(knowledge);
  ASSERT_EQ(found.candidates.size(), expected.candidates.size());
  for (size_t c = 0; c < found.candidates.size(); ++c) {
    EXPECT_EQ(found.candidates[c].strategy, expected.candidates[c].strategy);
    EXPECT_FALSE(found.candidates[c].predicted_ms);
  }
}

TEST(AutoPolicy, GradientsOf16BitsArePlannedToo) {
  for (const bool is_mixed : {false, true}) {
    TimelineJob job = reference_job(20, Fidelity::lossy);
    for (size_t t = 0; t < job.knowledge.table.tensors.size(); ++t) {
      if (!is_mixed || t % 4 == 3) job.knowledge.table.tensors[t].dtype = core::DType::bf16;
    }
    const Ended ended = run(job, 5);
    ASSERT_FALSE(ended.rounds.empty());
    for (const auto& round : ended.rounds) {
      for (const Candidate& candidate : round) {
        EXPECT_TRUE(candidate.label.starts_with("auto")) << candidate.label;
        EXPECT_TRUE(candidate.predicted_ms) << "by its own model";
        EXPECT_TRUE(core::validate(candidate.strategy, job.knowledge.table).ok());
      }
    }
    EXPECT_LT(ended.ms, 0.8 * job.baseline_ms()) << "topk on a slow link";
  }
}

}  // namespace
}  // namespace gradtune::policies
