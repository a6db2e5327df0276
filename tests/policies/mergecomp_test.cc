// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests the quality of `mergecomp`'s decisions, on modelled step times, against the best of its whole space.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "engine/core/rng.h"
#include "policies/space/baseline.h"
#include "policies/space/schemes.h"
#include "tests/policies/fusion_model.h"
#include "tests/policies/jobs.h"
#include "tests/policies/step_model.h"

namespace gradtune::policies {
namespace {

using core::Fidelity;
using testing::StepModel;

constexpr double kGigabit = 119.5;  // bytes per microsecond, less headers
constexpr int kMostProbes = 16;
constexpr int kMostBuckets = 32;

using Time = std::function<double(const core::Strategy&)>;

struct Tuned {
  std::vector<std::string> probes;
  size_t proposals = 0;
  std::vector<Candidate> finalists;
};

Tuned tune(const Knowledge& knowledge, const Time& time, int most_finalists = 7) {
  const auto policy = std::move(make_policy("mergecomp", {.most_finalists = most_finalists})).value();
  Tuned tuned;
  while (true) {
    Proposal proposal = policy->propose(knowledge);
    if (proposal.final) {
      tuned.finalists = std::move(proposal.candidates);
      return tuned;
    }
    ++tuned.proposals;
    for (const Candidate& candidate : proposal.candidates) {
      tuned.probes.push_back(candidate.label);
      policy->learn({core::hash(candidate.strategy), time(candidate.strategy), 5});
    }
  }
}

struct Job {
  std::string name;
  Knowledge knowledge;
  StepModel model;

  double time(const core::Strategy& strategy) const { return model.step_ms(strategy); }

  // The best of the policy's space: every program on every nested partition.
  double best_ms() const {
    double best = std::numeric_limits<double>::infinity();
    for (const Scheme& form : admitted_schemes(knowledge)) {
      core::GradientTable table = knowledge.table;
      table.tensors.resize(form.end);
      for (const Partition& partition : nested_partitions(table, kMostBuckets))
        best = std::min(best, time(apply(form, partition, knowledge).strategy));
    }
    return best;
  }

  // The final step time if the race picks the best of the finalists, or keeps the baseline.
  double ends_with_ms(const Tuned& tuned) const {
    double best = knowledge.baseline_ms;
    for (const Candidate& candidate : tuned.finalists) best = std::min(best, time(candidate.strategy));
    return best;
  }
};

Job make_job(std::string name, core::GradientTable table, int world_size, double rate, Fidelity fidelity) {
  StepModel model{
      .table = table, .traits = testing::known_traits(), .world_size = world_size, .link_bytes_per_us = rate};
  Knowledge knowledge = testing::knowledge_of(std::move(table), world_size, fidelity);
  knowledge.baseline_ms = std::numeric_limits<double>::infinity();
  for (const Candidate& baseline : baselines(knowledge.table, fidelity)) {
    knowledge.baseline_ms = std::min(knowledge.baseline_ms, model.step_ms(baseline.strategy));
  }
  name += " " + std::to_string(world_size) + " ranks " + std::to_string(rate / kGigabit) + " Gbit/s " +
          std::string(core::to_string(fidelity));
  return {std::move(name), std::move(knowledge), std::move(model)};
}

std::vector<Job> reference_jobs() {
  std::vector<Job> jobs;
  for (double rate : {kGigabit, kGigabit / 5}) {
    for (Fidelity fidelity : {Fidelity::exact, Fidelity::half, Fidelity::lossy}) {
      jobs.push_back(make_job("reference", testing::reference_table(), 2, rate, fidelity));
    }
  }
  return jobs;
}

// The order in which a session lays out tensors.
core::GradientTable laid(const core::GradientTable& table) {
  std::vector<int32_t> order(table.tensors.size());
  std::iota(order.begin(), order.end(), 0);
  core::GradientTable result;
  for (const int32_t t : core::small_last(table, order))
    result.tensors.push_back(table.tensors[static_cast<size_t>(t)]);
  return result;
}

// The traces were taken on a GPU of the V100 class, which encodes some twenty times faster than a core.
std::vector<Job> trace_jobs() {
  std::vector<Job> jobs;
  for (std::string_view trace : {"vgg16", "resnet50", "bert_base", "gpt2"}) {
    const core::GradientTable table = laid(testing::read_trace(trace));
    for (int world_size : {2, 8}) {
      for (double rate : {kGigabit * 2, kGigabit * 10, kGigabit * 100}) {
        for (Fidelity fidelity : {Fidelity::exact, Fidelity::half, Fidelity::lossy}) {
          Job job = make_job(std::string(trace), table, world_size, rate, fidelity);
          job.model.first_ready_us = table.tensors.back().ready_us / 2;
          job.model.copy_ns = job.model.add_ns = 0.03;
          job.model.compress_ns = 0.08;
          jobs.push_back(std::move(job));
        }
      }
    }
  }
  return jobs;
}

void expect_near_the_best(const std::vector<Job>& jobs) {
  for (const Job& job : jobs) {
    const Tuned tuned = tune(job.knowledge, [&](const auto& strategy) { return job.time(strategy); });
    EXPECT_LE(job.ends_with_ms(tuned), 1.03 * job.best_ms()) << job.name;
    EXPECT_LE(tuned.probes.size(), kMostProbes) << job.name;
  }
}

// With 1 % of noise on every measurement, all results are within 6 %, and 98 in a hundred within 3 %. For each job
// at least three in four are, since the partitions of some jobs differ by as much as the noise.
void expect_near_the_best_under_noise(const std::vector<Job>& jobs, int seeds) {
  int all_near = 0;
  for (const Job& job : jobs) {
    const double best_ms = job.best_ms();
    int near = 0;
    for (int seed = 0; seed < seeds; ++seed) {
      core::Rng rng(static_cast<uint64_t>(seed));
      const Tuned tuned =
          tune(job.knowledge, [&](const auto& strategy) { return job.time(strategy) * (1 + 0.01 * rng.normal()); });
      near += job.ends_with_ms(tuned) <= 1.03 * best_ms;
      EXPECT_LE(job.ends_with_ms(tuned), 1.06 * best_ms) << job.name << ", seed " << seed;
      EXPECT_LE(tuned.probes.size(), kMostProbes) << job.name << ", seed " << seed;
    }
    EXPECT_GE(near, seeds * 3 / 4) << job.name;
    all_near += near;
  }
  EXPECT_GE(all_near, static_cast<int>(jobs.size()) * seeds * 98 / 100);
}

TEST(MergeComp, EndsNearTheBestOfItsSpace) { expect_near_the_best(reference_jobs()); }
TEST(MergeComp, EndsNearTheBestOfItsSpaceUnderNoise) { expect_near_the_best_under_noise(reference_jobs(), 100); }

TEST(MergeCompOnTraces, EndsNearTheBestOfItsSpace) { expect_near_the_best(trace_jobs()); }
TEST(MergeCompOnTraces, EndsNearTheBestOfItsSpaceUnderNoise) { expect_near_the_best_under_noise(trace_jobs(), 20); }

// A wider space than its own: all groupings of the ten tensors, and its nested partitions, for the programs it
// knows.
TEST(MergeComp, IsNotFarFromTheBestGroupingOfTensorsEither) {
  for (const Job& job : reference_jobs()) {
    const auto& tensors = job.knowledge.table.tensors;
    double best_ms = job.best_ms();
    for (unsigned cuts = 0; cuts < 1u << (tensors.size() - 1); ++cuts) {
      Partition partition(1);
      for (size_t t = 0; t < tensors.size(); ++t) {
        partition.back().push_back({static_cast<int32_t>(t), 0, tensors[t].numel});
        if ((cuts >> t & 1) != 0) partition.emplace_back();
      }
      for (const Scheme& form : admitted_schemes(job.knowledge)) {
        best_ms = std::min(best_ms, job.time(apply(form, partition, job.knowledge).strategy));
      }
    }
    const Tuned tuned = tune(job.knowledge, [&](const auto& strategy) { return job.time(strategy); });
    EXPECT_LE(job.ends_with_ms(tuned), 1.03 * best_ms) << job.name;
  }
}

TEST(MergeComp, ScreensOneProgramPerCompressorAndTheOthersOfThoseThatCameNear) {
  const Knowledge knowledge = testing::knowledge_of(testing::reference_table(), 2, Fidelity::lossy);
  // All are equal: everything that arithmetic does not rule out is screened, fewest bytes first.
  const Tuned alike = tune(knowledge, [](const auto&) { return 100.0; });
  EXPECT_THAT(std::vector(alike.probes.begin(), alike.probes.begin() + 5),
              ::testing::ElementsAre("topk:0.01 gather, 2 buckets + small", "bf16 gather, 8 buckets",
                                     "all_reduce, 8 buckets", "bf16 all_reduce, 8 buckets", "none gather, 8 buckets"));
  // If bytes decide, 16 bits are tried once and 32 never.
  const Job slow = make_job("", testing::reference_table(), 2, kGigabit / 5, Fidelity::lossy);
  const Tuned tuned = tune(slow.knowledge, [&](const auto& strategy) { return slow.time(strategy); });
  EXPECT_THAT(tuned.probes, ::testing::Contains("bf16 gather, 8 buckets"));
  EXPECT_THAT(tuned.probes, ::testing::Not(::testing::Contains(::testing::HasSubstr("bf16 all_reduce"))));
  EXPECT_THAT(tuned.probes, ::testing::Not(::testing::Contains(::testing::StartsWith("all_reduce"))));
}

TEST(MergeComp, AsksTogetherForWhatItNeedsInAnyCase) {
  const Job job = make_job("", testing::reference_table(), 2, kGigabit, Fidelity::half);
  const Tuned tuned = tune(job.knowledge, [&](const auto& strategy) { return job.time(strategy); });
  EXPECT_LE(tuned.proposals, (tuned.probes.size() + 1) / 2);
  const auto policy = std::move(make_policy("mergecomp", {})).value();
  std::vector<std::string> first;
  for (const Candidate& candidate : policy->propose(job.knowledge).candidates) first.push_back(candidate.label);
  EXPECT_THAT(first, ::testing::ElementsAre("bf16 gather, 8 buckets", "all_reduce, 8 buckets"))
      << "one program of each compressor; which others are worth a look depends on these";
}

TEST(MergeComp, DoesNotScreenWhatArithmeticRulesOut) {
  const auto probes = [](int world_size) {
    const Knowledge knowledge = testing::knowledge_of(testing::reference_table(), world_size, Fidelity::lossy);
    std::string all;
    for (const std::string& label : tune(knowledge, [](const auto&) { return 100.0; }).probes) all += label + "\n";
    return all;
  };
  using ::testing::HasSubstr;
  using ::testing::Not;
  EXPECT_THAT(probes(2), Not(HasSubstr("two_step"))) << "on two ranks gather sends the same in one round";
  EXPECT_THAT(probes(3), HasSubstr("bf16 two_step"));
  EXPECT_THAT(probes(3), HasSubstr("bf16 gather"));
  EXPECT_THAT(probes(8), Not(HasSubstr("bf16 gather"))) << "four times the bytes of the ring";
  EXPECT_THAT(probes(8), HasSubstr("topk:0.01 gather")) << "small payloads have no second encode that way";
  for (int world_size : {2, 3, 8}) EXPECT_THAT(probes(world_size), Not(HasSubstr("none two_step")));
}

TEST(MergeComp, SixteenBitsAreNoUseForGradientsThatHave16Already) {
  core::GradientTable table = testing::reference_table();
  for (core::TensorInfo& tensor : table.tensors) tensor.dtype = core::DType::bf16;
  const Tuned tuned = tune(testing::knowledge_of(table, 2, Fidelity::half), [](const auto&) { return 100.0; });
  for (const std::string& label : tuned.probes) EXPECT_THAT(label, ::testing::StartsWith("all_reduce"));
}

TEST(MergeComp, TriesTheHostForTheBestProgramWhereThereIsOne) {
  Job job = make_job("", testing::reference_table(), 2, kGigabit, Fidelity::half);
  job.model.copy_ns = job.model.add_ns = 3;  // a device on which codecs are expensive
  job.model.host_slowdown = 0.2;
  job.knowledge.host_threads = 4;
  const Tuned tuned = tune(job.knowledge, [&](const auto& strategy) { return job.time(strategy); });
  EXPECT_THAT(tuned.finalists[0].label, ::testing::HasSubstr("host"));
  EXPECT_LE(job.ends_with_ms(tuned), 1.03 * job.best_ms());
}

TEST(MergeComp, FinalistsIncludeTheBestOfEachFidelityThatIsNear) {
  const Knowledge knowledge = testing::knowledge_of(testing::reference_table(), 2, Fidelity::lossy);
  // Times by fidelity: lossy best, half 4 % behind, exact 9 % behind.
  const Time time = [&](const core::Strategy& strategy) {
    const core::Option& option = strategy.buckets[0].option;
    const std::string codec = option.codecs.empty() ? "none" : option.codecs[0].name;
    return codec == "none" ? 109.0 : codec == "bf16" ? 104.0 : 100.0;
  };
  for (int most_finalists : {3, 7}) {
    std::string labels;
    for (const Candidate& candidate : tune(knowledge, time, most_finalists).finalists) labels += candidate.label + "\n";
    EXPECT_THAT(labels, ::testing::StartsWith("topk"));
    EXPECT_THAT(labels, ::testing::HasSubstr("bf16"));
    EXPECT_THAT(labels, ::testing::AnyOf(::testing::HasSubstr("\nall_reduce"), ::testing::HasSubstr("\nnone")));
  }
}

TEST(MergeComp, ProposesNothingThatIsSlowerThanTheBaseline) {
  Knowledge knowledge = testing::knowledge_of(testing::reference_table(), 2, Fidelity::lossy);
  knowledge.baseline_ms = 90;
  EXPECT_TRUE(tune(knowledge, [](const auto&) { return 100.0; }).finalists.empty());
  knowledge.baseline_ms = 100;
  EXPECT_FALSE(tune(knowledge, [](const auto&) { return 100.0; }).finalists.empty());
}

TEST(MergeComp, GoesOnWithoutCandidatesThatCouldNotRun) {
  const Job job = make_job("", testing::reference_table(), 2, kGigabit, Fidelity::half);
  const auto policy = std::move(make_policy("mergecomp", {})).value();
  Proposal proposal = policy->propose(job.knowledge);
  for (; !proposal.final; proposal = policy->propose(job.knowledge)) {
    for (const Candidate& candidate : proposal.candidates) {
      if (candidate.label.find("gather") != std::string::npos) continue;  // for example, prepared on no rank
      policy->learn({core::hash(candidate.strategy), job.time(candidate.strategy), 5});
    }
  }
  ASSERT_FALSE(proposal.candidates.empty());
  for (const Candidate& candidate : proposal.candidates)
    EXPECT_THAT(candidate.label, ::testing::HasSubstr("all_reduce"));
}

// MergeComp's own search bisects over one split point. It loses this much against the best split when every probe
// has 1 % of noise (policies/README.md, "Why split points are not found by bisection"): median and 90th percentile,
// in percent. Here the policy uses fewer measurements than bisection. The rest go to its finalists in turn, as in a
// race.
struct BisectionCase {
  testing::FusionModel model;
  double best_split_ms;
  size_t measurements;
  double median_gap, p90_gap;
};

Candidate race(const std::vector<Candidate>& finalists, size_t measurements, const Time& time) {
  std::vector<double> sums_ms(finalists.size());
  const size_t rounds = measurements / finalists.size();
  for (size_t r = 0; r < rounds; ++r) {
    for (size_t f = 0; f < finalists.size(); ++f) sums_ms[f] += time(finalists[f].strategy);
  }
  return finalists[static_cast<size_t>(std::min_element(sums_ms.begin(), sums_ms.end()) - sums_ms.begin())];
}

TEST(MergeCompOnTraces, LosesLessToNoiseThanBisection) {
  // resnet50 with random-k is flat: differences within 2 % are luck for either search.
  constexpr double kAlike = 2;
  constexpr uint64_t kRuns = 100;
  const BisectionCase cases[] = {
      {testing::vgg16_random_k(4), 213.1, 8, 1.04, 9.95},    {testing::vgg16_random_k(8), 215.3, 8, 1.03, 9.84},
      {testing::resnet50_dgc(4), 68.0, 11, 1.72, 1.72},      {testing::resnet50_dgc(8), 68.4, 11, 1.17, 1.17},
      {testing::resnet50_random_k(4), 64.1, 11, 0.59, 1.21}, {testing::resnet50_random_k(8), 64.1, 12, 0.65, 1.33},
      {testing::bert_random_k(4), 74.0, 11, 1.69, 6.76},     {testing::bert_random_k(8), 75.0, 13, 1.41, 6.87},
      {testing::gpt2_efsign(4), 225.3, 11, 1.59, 3.97},      {testing::gpt2_efsign(8), 226.9, 12, 1.51, 4.11},
  };
  for (const BisectionCase& job : cases) {
    const core::GradientTable table = testing::read_trace(job.model.trace);
    // On two ranks there is one program for it; the model contains the machines.
    Knowledge knowledge = testing::knowledge_of(table, 2, Fidelity::lossy);
    knowledge.codecs = {{"topk", 0.01}};
    std::vector<double> gaps;
    for (uint64_t seed = 0; seed < kRuns; ++seed) {
      core::Rng rng(seed);
      const Time noisy = [&](const auto& strategy) {
        return job.model.step_ms(table, strategy) * (1 + 0.01 * rng.normal());
      };
      const Tuned tuned = tune(knowledge, noisy);
      EXPECT_LE(tuned.probes.size(), job.measurements);
      const Candidate winner =
          race(tuned.finalists, job.measurements - std::min(job.measurements, tuned.probes.size()), noisy);
      gaps.push_back(100 * (job.model.step_ms(table, winner.strategy) / job.best_split_ms - 1));
    }
    std::sort(gaps.begin(), gaps.end());
    EXPECT_LT(gaps[kRuns / 2], job.median_gap) << job.model.trace << " " << job.model.machines;
    EXPECT_LT(gaps[kRuns * 9 / 10], std::max(job.p90_gap, kAlike)) << job.model.trace << " " << job.model.machines;
  }
}

}  // namespace
}  // namespace gradtune::policies
