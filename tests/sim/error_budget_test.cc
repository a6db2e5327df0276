// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests the guard of compression from end to end. Gradients that change their nature are really compressed on
// simulated ranks. Their loss is sampled, judged on each rank and reduced. The real tuner takes all ranks back to
// the baseline in the same step, and from there to the same strategy without compression in the failed buckets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/ledger.h"
#include "tests/sim/tuned_job.h"

namespace gradtune::sim {
namespace {

using What = tuner::Decision::What;

using testing::HasSubstr;

constexpr int64_t kChange = 330, kSteps = 1'000;

// One element in a hundred is large; from kChange on, on the last rank, all of the last `dense` tensors are.
exec::Values gradient(const core::GradientTable& table, int rank, int size, int64_t step, size_t dense) {
  core::Rng rng(static_cast<uint64_t>(1'000 * step + rank));
  exec::Values values(static_cast<size_t>(table.numel()));
  int64_t first_dense = table.numel();
  for (size_t t = table.tensors.size() - dense; t < table.tensors.size(); ++t) first_dense -= table.tensors[t].numel;
  if (step < kChange || rank + 1 < size) first_dense = table.numel();
  for (size_t i = 0; i < values.size(); ++i) {
    const bool counts = static_cast<int64_t>(i) >= first_dense || rng.below(100) == 0;
    values[i] = static_cast<float>((counts ? 1 : 0.001) * (2 * rng.uniform() - 1));
  }
  return values;
}

core::GradientTable three_tensors() {
  return exec::make_table({{100, core::DType::f32}, {6'000, core::DType::f32}, {9'000, core::DType::f32}});
}

struct Guarded {
  // Gradients of the last `dense` tensors change; without it those of all tensors.
  Guarded(int size, std::optional<double> error_budget, const core::GradientTable& table = three_tensors(),
          size_t dense = 3)
      : ledger(table, size), tuned(options(size, error_budget, table, dense), tuned_job(size, table)) {}

  const SimulatedRank& rank(int r) const { return tuned.job().rank(r); }
  std::vector<tuner::Decision> decided(What what, int64_t since = 0) const { return tuned.decided(what, since); }
  bool is_lossy(int r, size_t step) const {
    return core::needed_fidelity(rank(r).steps()[step].strategy, compress::known_traits()) == core::Fidelity::lossy;
  }

  Ledger ledger;
  TunedJob tuned;

 private:
  static tuner::Job tuned_job(int size, const core::GradientTable& table) {
    return {.table = table,
            .ranks = {.size = size},
            .fidelity = core::Fidelity::lossy,
            .codecs = {{"none"}, {"bf16"}, {"topk", 0.02}},
            .policy = "mergecomp",
            .tuning = {.seed = 3}};
  }
  JobOptions options(int size, std::optional<double> error_budget, const core::GradientTable& table, size_t dense) {
    JobOptions options{
        .world = {
            .size = size, .seed = 3, .rank = {.bytes_per_second = 3e6, .latency_ns = 100'000}, .jitter_ns = 20'000}};
    options.rank.table = table;
    options.rank.executor = {.backward_ns = 4'000'000, .device = {.fixed_ns = 50'000, .element_ns = 1}};
    options.rank.steps = kSteps;
    options.rank.limits.budget = error_budget;
    options.rank.gradient = [=](int rank, int64_t step) { return gradient(table, rank, size, step, dense); };
    options.rank.on_values = [this](StepValues values) { ledger.add(std::move(values)); };
    return options;
  }
};

class ErrorBudgets : public testing::TestWithParam<std::optional<double>> {};
INSTANTIATE_TEST_SUITE_P(SeenOrGiven, ErrorBudgets, testing::Values(std::nullopt, 0.6));

TEST_P(ErrorBudgets, AChangeOfGradientsOnOneRankTakesAllBackToTheBaselineInTheSameStep) {
  constexpr int kSize = 3;
  Guarded run(kSize, GetParam());
  for (int r = 0; r < kSize; ++r) {
    ASSERT_FALSE(run.rank(r).error()) << run.rank(r).error()->message;
    ASSERT_EQ(run.rank(r).steps().size(), static_cast<size_t>(kSteps));
  }
  ASSERT_FALSE(run.decided(What::commit).empty());
  ASSERT_TRUE(run.is_lossy(0, kChange)) << run.decided(What::commit).back().label;
  size_t first = kChange;
  while (first + 1 < kSteps && run.is_lossy(0, first)) ++first;
  // More than half of the measurements in a median, one step for the report, and the lead.
  const size_t half = (GetParam() ? tuner::ErrorBudget::kSteps : tuner::ErrorBudget::kJump) / 2;
  EXPECT_GE(first, static_cast<size_t>(kChange) + half);
  EXPECT_LE(first, static_cast<size_t>(kChange) + half + 3 + tuner::kLead);
  for (int r = 1; r < kSize; ++r) {
    for (size_t s = 0; s < static_cast<size_t>(kSteps); ++s) {
      ASSERT_EQ(core::hash(run.rank(r).steps()[s].strategy), core::hash(run.rank(0).steps()[s].strategy));
    }
  }
  const auto found = run.decided(What::over_error_budget, kChange);
  ASSERT_FALSE(found.empty());
  EXPECT_THAT(found[0].label, HasSubstr("bucket "));
  EXPECT_GT(found[0].value, GetParam().value_or(tuner::ErrorBudget::kLeast));
  EXPECT_TRUE(std::ranges::any_of(run.tuned.journal().reports, [](const core::StepReport& report) {
    return report.excess.kind == core::Excess::Kind::error;
  }));
  // Dense gradients are not worth compressing: in the end no lossy strategy is in force.
  EXPECT_FALSE(run.decided(What::repair, kChange).empty());
  EXPECT_FALSE(run.is_lossy(0, kSteps - 1));
  EXPECT_GT(run.ledger.drains(), 0) << "what was owed is paid back within its cap";
  EXPECT_EQ(run.ledger.steps(), kSteps);
}

TEST_P(ErrorBudgets, TheJournalReplaysToTheSameDecisions) {
  const Guarded run(2, GetParam());
  const tuner::JournalFile& journal = run.tuned.journal();
  const auto again = tuner::decide_again(journal);
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(again.value(), journal.decided);
  EXPECT_FALSE(run.decided(What::repair, kChange).empty());
}

// Only the first bucket changes: it is sent without compression, and all others as before.
TEST(ErrorBudgetRepair, OnlyTheBucketThatChangedIsReplaced) {
  constexpr int kSize = 2;
  const auto table = exec::make_table({{100, core::DType::f32}, {12'000, core::DType::f32}, {2'000, core::DType::f32}});
  Guarded run(kSize, std::nullopt, table, /*dense=*/1);
  const auto repairs = run.decided(What::repair, kChange);
  ASSERT_EQ(repairs.size(), 1U);
  ASSERT_EQ(run.decided(What::commit, kChange).size(), 1U);
  EXPECT_EQ(run.decided(What::commit, kChange)[0].label, repairs[0].label);
  const auto replaced = static_cast<size_t>(repairs[0].value);
  const core::Option half = core::encoded_all_reduce({"bf16"}, core::Place::device);
  const core::Strategy& before = run.rank(0).steps()[kChange].strategy;
  for (int r = 0; r < kSize; ++r) {
    const core::Strategy& after = run.rank(r).steps()[kSteps - 1].strategy;
    ASSERT_EQ(after.buckets.size(), before.buckets.size());
    ASSERT_GT(after.buckets.size(), 1U);
    for (size_t b = 0; b < after.buckets.size(); ++b) {
      EXPECT_EQ(after.buckets[b].slices, before.buckets[b].slices);
      EXPECT_EQ(after.buckets[b].option, b == replaced ? half : before.buckets[b].option);
    }
  }
  EXPECT_TRUE(run.is_lossy(0, kSteps - 1));
  EXPECT_GT(run.tuned.driver().outcome().gain, 0);
  EXPECT_GT(run.ledger.emptied(), 0) << "what that bucket owed is paid back";
  EXPECT_EQ(run.ledger.steps(), kSteps);
}

TEST(ErrorBudgetTrial, ABudgetThatNoTrialKeepsIsNeverCommitted) {
  const Guarded run(2, 0.01);
  for (const tuner::Decision& commit : run.decided(What::commit))
    EXPECT_EQ(commit.label.find("topk"), std::string::npos);
  ASSERT_FALSE(run.decided(What::over_error_budget).empty());
  EXPECT_FALSE(run.is_lossy(0, kSteps - 1));
}

// Unscaled Rand-k diverges on constant gradients.
TEST(RunawayResidual, IsReportedOnAllRanks) {
  JobOptions options{.world = {.size = 2, .rank = {.bytes_per_second = 1e9, .latency_ns = 10'000}}};
  options.rank.table = exec::make_table({{4'000, core::DType::f32}});
  options.rank.steps = 250;
  const std::string option = "randk:0.01: encode@device all_reduce decode@device";
  options.rank.start = {{exec::make_strategy(options.rank.table, option, 1 << 20, 1), "randk"}};
  options.rank.gradient = [](int rank, int64_t) { return exec::Values(4'000, static_cast<float>(rank + 1)); };
  std::vector<core::StepReport> reports;
  options.leader.script = [&](const core::StepReport& report) {
    reports.push_back(report);
    const bool is_first = reports.size() == 1;
    return tuner::Action{{.kind = is_first ? tuner::Command::Kind::commit : tuner::Command::Kind::keep}, nullptr};
  };
  Job job(options);
  job.run();
  ASSERT_FALSE(job.rank(0).error());
  const auto found = std::ranges::find_if(
      reports, [](const auto& report) { return report.excess.kind == core::Excess::Kind::residual; });
  ASSERT_NE(found, reports.end());
  EXPECT_GT(found->step, 30);
  EXPECT_NEAR(found->excess.value, 30, 2);
}

}  // namespace
}  // namespace gradtune::sim
