// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests planners on the published traces under the published cost model, against known results. These are the time
// without any merging or compression, the result of Espresso's algorithm 1, and the exact optima of options per tensor
// and of options and partition together. The tests are skipped if there are no traces.
#include "policies/cost/published_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "policies/planner.h"
#include "policies/search/espresso_search.h"
#include "policies/search/label_search.h"
#include "tests/policies/jobs.h"

namespace gradtune::policies {
namespace {

using testing::read_trace;

// Times in ms.
struct Case {
  std::string trace;
  PublishedCost cost;
  double none, algorithm_1, exact_per_tensor, exact;
};

std::vector<Case> cases() {
  const auto pcie = [](const char* compressor, int machines) {
    return PublishedCost{.compressor = compressor, .intra = "pcie", .machines = machines, .two_level = true};
  };
  const auto nvl = [](const char* compressor, int machines) {
    return PublishedCost{.compressor = compressor, .intra = "nvl", .machines = machines};
  };
  return {
      {"vgg16", pcie("randomk", 8), 1171.8, 102.1, 97.23, 96.86},
      {"resnet50", pcie("dgc", 8), 262.9, 94.5, 94.51, 64.62},
      {"resnet50", nvl("randomk", 8), 194.9, 65.4, 65.11, 63.92},
      {"bert_base", nvl("randomk", 8), 684.7, 86.9, 86.93, 71.79},
      {"gpt2", nvl("efsignsgd", 8), 761.0, 226.3, 225.00, 223.28},
      {"vgg16", pcie("randomk", 4), 1061.1, 101.3, 97.14, 96.84},
      {"resnet50", pcie("dgc", 4), 242.4, 93.5, 93.52, 64.54},
      {"resnet50", nvl("randomk", 4), 174.5, 65.3, 64.94, 63.92},
      {"bert_base", nvl("randomk", 4), 597.5, 85.2, 85.21, 71.39},
      {"gpt2", nvl("efsignsgd", 4), 661.4, 225.1, 223.42, 222.14},
  };
}

struct Job {
  explicit Job(const Case& given)
      : name(given.trace + " " + given.cost.compressor + " " + given.cost.intra + " " +
             std::to_string(given.cost.machines)),
        table(read_trace(given.trace)),
        model(std::move(make_published_cost(given.cost)).value()),
        planned{*model, published_knowledge(given.cost, table)} {
    const std::vector<double> ready_us = ready_times_us(table);
    for (size_t t = 0; t < table.tensors.size(); ++t) atoms.push_back({table.tensors[t].numel, ready_us[t]});
  }
  double plan_ms(std::string_view planner) const { return plan(planner, planned).value().end_us * 1e-3; }

  std::string name;
  core::GradientTable table;
  std::unique_ptr<CostModel> model;
  PlannedJob planned;
  std::vector<Atom> atoms;
};

TEST(PublishedTraces, WithoutMergingAndCompression) {
  for (const Case& given : cases()) {
    const Job job(given);
    std::vector<Message> messages;
    for (int32_t t = 0; t < static_cast<int32_t>(job.atoms.size()); ++t) messages.push_back({t, t, 0});
    EXPECT_NEAR(replay_us(*job.model, job.atoms, messages) * 1e-3, given.none, 0.1) << job.name;
  }
}

TEST(PublishedTraces, EspressoFindsWhatAlgorithm1Finds) {
  for (const Case& given : cases()) {
    const Job job(given);
    EXPECT_NEAR(choose_options(*job.model, job.atoms).end_us * 1e-3, given.algorithm_1, 0.1) << job.name;
    EXPECT_NEAR(job.plan_ms("espresso"), given.algorithm_1, 0.1) << job.name;
  }
}

TEST(PublishedTraces, ExactOptimumOfOptionsPerTensor) {
  for (const Case& given : cases()) {
    const Job job(given);
    const SearchResult found = search_labels(*job.model, job.atoms, {.merges = false, .tolerance = 0});
    EXPECT_NEAR(found.plans[0].end_us * 1e-3, given.exact_per_tensor, 0.01) << job.name;
    EXPECT_EQ(found.least_us, found.plans[0].end_us) << job.name;
  }
}

TEST(PublishedTraces, AutoIsWithinItsBoundOfTheExactOptimumAndNeverWorseThanTheOthers) {
  for (const Case& given : cases()) {
    const Job job(given);
    const Planned found = plan("auto", job.planned).value();
    const double found_ms = found.end_us * 1e-3;
    EXPECT_TRUE(core::validate(found.strategy, job.table).ok()) << job.name;
    EXPECT_EQ(found.end_us, replay_us(*job.model, job.table, found.strategy)) << job.name;
    EXPECT_LE(found_ms, 1.01 * given.exact) << job.name;
    EXPECT_GE(found_ms, given.exact - 0.01) << job.name;
    ASSERT_TRUE(found.error_bound) << job.name;
    EXPECT_LE(found_ms / (1 + *found.error_bound), given.exact + 0.01) << job.name;
    EXPECT_LE(*found.error_bound, 0.015) << job.name;
    for (const char* other : {"espresso", "mergecomp", "baseline"}) EXPECT_LE(found_ms, job.plan_ms(other)) << other;
  }
}

TEST(PublishedTraces, ExhaustiveFindsTheExactOptimum) {
  for (const Case& given : cases()) {
    if (given.trace != "vgg16" && given.trace != "resnet50") continue;
    const Job job(given);
    const Planned found = plan("exhaustive", job.planned).value();
    EXPECT_NEAR(found.end_us * 1e-3, given.exact, 0.01) << job.name;
    EXPECT_EQ(found.error_bound, 0) << job.name;
  }
}

TEST(PublishedTraces, DISABLED_ExhaustiveFindsTheExactOptimumOfTheLargeOnes) {  // 7 s each: published_traces_long
  for (const Case& given : cases()) {
    const Job job(given);
    EXPECT_NEAR(job.plan_ms("exhaustive"), given.exact, 0.01) << job.name;
  }
}

TEST(PublishedCost, NamesWhatIsAllowed) {
  EXPECT_EQ(make_published_cost({.compressor = "zip"}).error().message,
            "compressor \"zip\" is unknown; known are randomk, dgc, efsignsgd, onebit");
  EXPECT_EQ(make_published_cost({.intra = "usb"}).error().message,
            "link inside a machine \"usb\" is unknown; known are pcie, nvl");
  EXPECT_EQ(make_published_cost({.machines = 0}).error().message,
            "at least 1 machine and 1 GPU per machine are needed, found 0 and 8");
}

TEST(Planner, NamesWhatIsAllowed) {
  const auto model = std::move(make_published_cost({})).value();
  EXPECT_EQ(plan("best", {*model, published_knowledge({}, {})}).error().message,
            "policy \"best\" is unknown; known are auto, espresso, mergecomp, wfbp, mgwfbp, bytescheduler, usbyte, "
            "baseline, exhaustive");
}

TEST(Planner, PiecesAreCutAndMergedTensors) {
  const auto model = std::move(make_published_cost({})).value();
  std::vector<core::TensorInfo> tensors = {testing::tensor("large", 80'000'000, 0)};
  for (int t = 0; t < 200; ++t) tensors.push_back(testing::tensor("t" + std::to_string(t), 100'000, 100 * t));
  PlannedJob job{*model, published_knowledge({}, testing::make_table(tensors))};
  const Planned whole = plan("auto", job).value();
  job.pieces = 32;
  const Planned planned = plan("auto", job).value();
  EXPECT_TRUE(core::validate(planned.strategy, job.knowledge.table).ok());
  EXPECT_EQ(planned.end_us, replay_us(*model, job.knowledge.table, planned.strategy));
  EXPECT_LE(planned.end_us, 1.02 * whole.end_us);
}

// With one small tensor on one machine nothing can be gained, and it stays uncompressed. With several dtypes the
// order of buckets may gain something.
TEST(Planner, EveryPlannerPlansWhateverTheTable) {
  const auto model = std::move(make_published_cost({.machines = 1, .gpus_per_machine = 1})).value();
  for (const std::vector<core::TensorInfo>& tensors : std::vector<std::vector<core::TensorInfo>>{
           {},
           {testing::tensor("a", 0)},
           {testing::tensor("a", 5)},
           {testing::tensor("a", 5, 0, core::DType::bf16)},
           {testing::tensor("a", 5), testing::tensor("b", 7, 1, core::DType::f16), testing::tensor("c", 9, 2)}}) {
    const core::GradientTable table = testing::make_table(tensors);
    for (const PlannerRow& row : planner_table()) {
      const Planned planned = plan(row.name, {*model, published_knowledge({}, table)}).value();
      EXPECT_TRUE(core::validate(planned.strategy, table).ok()) << row.name;
      if (core::dtypes_of(table).size() > 1) continue;
      for (const core::Bucket& bucket : planned.strategy.buckets) {
        EXPECT_EQ(bucket.option, core::plain_all_reduce()) << row.name;
      }
    }
  }
}

}  // namespace
}  // namespace gradtune::policies
