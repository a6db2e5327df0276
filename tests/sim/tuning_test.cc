// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests whole tunings: the real driver and tuner with the real policy on rank 0 of a simulated job whose gradients are
// really compressed, moved and averaged.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/compress/compressor.h"
#include "engine/core/median.h"
#include "policies/space/baseline.h"
#include "tests/sim/tuned_job.h"

namespace gradtune::sim {
namespace {

using core::Fidelity;

struct Network {
  double bytes_per_second;
  int64_t latency_ns;
};
constexpr Network kSlow{8e6, 100'000};  // as slow for this model as 200 Mbit/s are for one of 1 M parameters
constexpr Network kFast{12.5e9, 5'000};

constexpr int64_t kSteps = 400;

core::GradientTable small_net() {
  using core::DType;
  core::GradientTable table =
      exec::make_table({{400, DType::f32}, {30'000, DType::f32}, {12'000, DType::f32}, {3'000, DType::f32}});
  double ready_us = 0;
  for (core::TensorInfo& tensor : table.tensors) tensor.ready_us = ready_us += 0.17 * static_cast<double>(tensor.numel);
  return table;
}

JobOptions training(const Network& network, int size, uint64_t seed) {
  JobOptions job{.world = {.size = size,
                           .seed = seed,
                           .rank = {.bytes_per_second = network.bytes_per_second, .latency_ns = network.latency_ns},
                           .jitter_ns = 50'000,
                           .stall_probability = 0.001,
                           .stall_ns = 5'000'000}};
  job.slowdown.assign(static_cast<size_t>(size), 1);
  job.slowdown.back() = 1.05;
  job.rank.table = small_net();
  job.rank.executor.backward_ns = 8'000'000;
  job.rank.forward_ns = 4'000'000;
  job.rank.noise = 0.03;
  // An operation has a fixed cost besides its elements, which another bucket must make up for.
  job.rank.executor.device = {.fixed_ns = 100'000, .element_ns = 1.5};
  job.rank.executor.host = {.fixed_ns = 100'000, .element_ns = 3};
  core::Rng rng(seed);
  std::vector<exec::Values> gradients;
  for (int i = 0; i < 7; ++i) gradients.push_back(exec::random_gradient(job.rank.table, rng));
  job.rank.gradient = [gradients](int rank, int64_t step) {
    return gradients[static_cast<size_t>(3 * rank + step) % gradients.size()];
  };
  return job;
}

std::vector<core::CompressorSpec> codecs_of(Fidelity fidelity) {
  std::vector<core::CompressorSpec> codecs = {{"none"}};
  if (fidelity >= Fidelity::half) codecs.push_back({"bf16"});
  if (fidelity >= Fidelity::lossy) codecs.push_back({"topk", 0.01});
  return codecs;
}

TunedJob tune(JobOptions options, Fidelity fidelity) {
  options.rank.steps = kSteps;
  const tuner::Job tuned{.table = options.rank.table,
                         .ranks = {.size = options.world.size},
                         .fidelity = fidelity,
                         .codecs = codecs_of(fidelity),
                         .policy = "mergecomp",
                         .tuning = {.seed = options.world.seed}};
  return {std::move(options), tuned};
}

const core::Strategy& final_strategy(const TunedJob& tuning) { return tuning.job().rank(0).steps().back().strategy; }

// By step: the hash of the strategy that the tuner believes to be in force.
std::map<int64_t, uint64_t> believed(const TunedJob& tuning) {
  std::map<int64_t, uint64_t> hashes;
  const auto again = tuner::run_again(
      tuning.journal(), [&](tuner::Tuner& tuner, const core::StepReport& report, tuner::Stage, const tuner::Action&) {
        hashes[report.step + tuner::kLead] = core::hash(tuner.in_force().strategy);
      });
  EXPECT_TRUE(again.ok());
  return hashes;
}

void expect_sound(const TunedJob& tuning) {
  ASSERT_EQ(tuning.driver().stage(), "watch") << "tuning was not over in time";
  const std::map<int64_t, uint64_t> believed_by_step = believed(tuning);
  for (int r = 0; r < tuning.job().size(); ++r) {
    const SimulatedRank& rank = tuning.job().rank(r);
    ASSERT_FALSE(rank.error()) << rank.error()->message;
    EXPECT_EQ(rank.exported(), tuning.job().rank(0).exported());
    for (const StepRecord& record : rank.steps()) {
      const auto believed = believed_by_step.find(record.step);
      if (believed == believed_by_step.end()) continue;  // before the first report
      ASSERT_EQ(core::hash(record.strategy), believed->second) << "step " << record.step;
    }
  }
}

// The step time of that strategy alone, in another run of the job: the median of the slowest rank's steps.
double pinned_ms(JobOptions options, const core::Strategy& strategy) {
  options.rank.start = {{strategy, "pinned"}};
  options.rank.steps = 40;
  Job job(options);
  job.run();
  std::vector<double> step_ms;
  for (size_t s = 1; s < job.rank(0).steps().size(); ++s) {
    step_ms.push_back(0);
    for (int r = 0; r < job.size(); ++r) step_ms.back() = std::max(step_ms.back(), job.rank(r).steps()[s].step_ms);
  }
  return core::median(std::move(step_ms));
}

class Tunings : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Tunings, testing::Values(2, 3, 4));

TEST_P(Tunings, OverASlowLinkCommitWhatIsTrulyFasterAndReportItsTrueTime) {
  for (const Fidelity fidelity : {Fidelity::half, Fidelity::lossy}) {
    JobOptions options = training(kSlow, GetParam(), 11);
    const TunedJob tuning = tune(options, fidelity);
    ASSERT_NO_FATAL_FAILURE(expect_sound(tuning));
    ASSERT_TRUE(tuning.driver().outcome().committed) << core::to_string(fidelity);
    double baseline_ms = 1e9;
    for (const policies::Candidate& baseline : policies::baselines(options.rank.table, fidelity)) {
      baseline_ms = std::min(baseline_ms, pinned_ms(options, baseline.strategy));
    }
    const double committed_ms = pinned_ms(options, final_strategy(tuning));
    EXPECT_LT(committed_ms, baseline_ms);
    EXPECT_NEAR(tuning.driver().outcome().committed_ms / committed_ms, 1, 0.03) << tuning.driver().outcome().label;
    EXPECT_NEAR(tuning.driver().outcome().baseline_ms / baseline_ms, 1, 0.03);
    EXPECT_NEAR(tuning.driver().outcome().gain, 1 - committed_ms / baseline_ms, 0.03);
  }
}

TEST_P(Tunings, WithNothingToGainKeepTheBaseline) {
  for (uint64_t seed = 0; seed < 2; ++seed) {
    for (const Fidelity fidelity : {Fidelity::exact, Fidelity::lossy}) {
      const JobOptions options = training(kFast, GetParam(), seed);
      const TunedJob tuning = tune(options, fidelity);
      ASSERT_NO_FATAL_FAILURE(expect_sound(tuning));
      EXPECT_FALSE(tuning.driver().outcome().committed) << tuning.driver().outcome().label << ", seed " << seed;
      bool is_baseline = false;
      for (const policies::Candidate& each : policies::baselines(options.rank.table, fidelity)) {
        is_baseline = is_baseline || each.strategy == final_strategy(tuning);
      }
      EXPECT_TRUE(is_baseline);
    }
  }
}

TEST(TuningsAgain, DecideTheSame) {
  const TunedJob once = tune(training(kSlow, 2, 5), Fidelity::lossy),
                 again = tune(training(kSlow, 2, 5), Fidelity::lossy);
  EXPECT_FALSE(once.journal().decided.empty());
  EXPECT_EQ(once.journal().decided, again.journal().decided);
  EXPECT_EQ(once.job().world().trace_hash(), again.job().world().trace_hash());
  for (int r = 0; r < 2; ++r) {
    EXPECT_EQ(once.job().rank(r).steps(), again.job().rank(r).steps());
    EXPECT_EQ(once.job().rank(r).exported(), again.job().rank(r).exported());
  }
  const TunedJob other = tune(training(kSlow, 2, 6), Fidelity::lossy);
  EXPECT_NE(once.journal().decided, other.journal().decided);
}

}  // namespace
}  // namespace gradtune::sim
