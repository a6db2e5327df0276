// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/search/hill_climb.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "policies/space/baseline.h"
#include "tests/policies/jobs.h"
#include "tests/policies/timeline_job.h"

namespace gradtune::policies {
namespace {

using core::Place;

class Refine : public ::testing::Test {
 protected:
  Refine() {
    job.knowledge = testing::knowledge_of(testing::reference_table(), 4, core::Fidelity::lossy);
    job.truth = testing::made_up_cost(4, 30, job.knowledge.codecs);
    options = {core::plain_all_reduce(), core::encoded_all_reduce({"bf16"}, Place::device),
               core::gather_payloads({"topk", 0.01}, Place::device)};
  }
  HillClimbJob refining(int most_runs = 200) const {
    return {.table = job.knowledge.table,
            .cost = job.truth,
            .traits = job.knowledge.traits,
            .options = options,
            .most_in_flight = 4,
            .most_runs = most_runs};
  }

  testing::TimelineJob job;
  std::vector<core::Option> options;
};

TEST_F(Refine, EndsEarlierAndFitsTheTable) {
  const core::Strategy before = baselines(job.knowledge.table, core::Fidelity::exact)[0].strategy;
  const core::Strategy after = hill_climb(before, refining());
  EXPECT_TRUE(core::validate(after, job.knowledge.table).ok());
  EXPECT_LT(job.step_ms(after), 0.8 * job.step_ms(before));
  EXPECT_EQ(hill_climb(after, refining()), after) << "nothing is left that helps";
}

TEST_F(Refine, SmallTensorsAreNotForOptionsThatLose) {
  const core::Strategy after =
      hill_climb(baselines(job.knowledge.table, core::Fidelity::exact)[0].strategy, refining());
  const auto first_small = static_cast<int32_t>(job.knowledge.table.first_small());
  bool is_lossy = false;
  for (const core::Bucket& bucket : after.buckets) {
    for (const core::CompressorSpec& codec : bucket.option.codecs) {
      is_lossy |= codec.name == "topk";
      EXPECT_TRUE(codec.name != "topk" || bucket.slices.back().tensor < first_small);
    }
  }
  EXPECT_TRUE(is_lossy);
}

TEST_F(Refine, MoreAreInFlightWhereTheirMessagesTravelLong) {
  // Gradients come every 10 ms, each is on the link for 8 ms and travels for 30.
  std::vector<core::TensorInfo> tensors;
  for (int t = 0; t < 8; ++t) tensors.push_back(testing::tensor(std::to_string(t), 1'000'000, 10'000.0 * t));
  job.knowledge = testing::knowledge_of(testing::make_table(tensors), 2, core::Fidelity::exact);
  job.truth = {.ranks = {.size = 2}, .collectives = {{core::Step::Kind::all_reduce, core::Level::flat, 15'000, 0.002}}};
  options.resize(1);
  const core::Strategy before = baselines(job.knowledge.table, core::Fidelity::exact)[0].strategy;
  const core::Strategy one_by_one = hill_climb(before, refining());
  EXPECT_EQ(one_by_one.in_flight, 2);
  job.truth.collectives[0].wait_us = job.truth.collectives[0].message_us;
  const core::Strategy after = hill_climb(before, refining());
  EXPECT_EQ(after.in_flight, 4);
  EXPECT_GT(after.buckets.size(), one_by_one.buckets.size());
  const double least_ms = 70 + 8 + 30;
  EXPECT_LE(job.step_ms(after) - job.rest_ms, 1.08 * least_ms);
  EXPECT_GE(job.step_ms(one_by_one) - job.rest_ms, 1.2 * least_ms);
}

// The earliest end over all orders in which each program's collectives keep their sequence.
double best_order_ms(const testing::TimelineJob& job, core::Strategy& strategy, std::vector<core::Issue>& left) {
  if (left.empty()) return job.step_ms(strategy);
  double best_ms = std::numeric_limits<double>::infinity();
  std::set<int32_t> tried;  // buckets
  for (size_t i = 0; i < left.size(); ++i) {
    const core::Issue issue = left[i];
    if (!tried.insert(issue.bucket).second) continue;
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(i));
    strategy.order.push_back(issue);
    best_ms = std::min(best_ms, best_order_ms(job, strategy, left));
    strategy.order.pop_back();
    left.insert(left.begin() + static_cast<std::ptrdiff_t>(i), issue);
  }
  return best_ms;
}

TEST_F(Refine, TheOrderOfCollectivesIsNearTheBestOfAll) {
  core::Rng rng(5);
  const std::string two_steps = "bf16: encode@device all_to_all decode@device encode@device all_gather decode@device";
  options.push_back(core::parse_option(two_steps, job.knowledge.traits).value());
  options.push_back(core::gather_payloads({"topk", 0.01}, Place::host));
  constexpr int kJobs = 200;
  int helped = 0, best = 0;
  for (int number = 0; number < kJobs; ++number) {
    std::vector<core::TensorInfo> tensors;
    double ready_us = 0;
    for (int t = 0; t < 4; ++t) {
      tensors.push_back(
          testing::tensor(std::to_string(t), static_cast<int64_t>(1000 + rng.below(2'000'000)), ready_us));
      ready_us += static_cast<double>(rng.below(20'000));
    }
    job.knowledge.table = testing::make_table(tensors);
    const double bytes_per_us = 10 + static_cast<double>(rng.below(300));
    for (CollectiveRate& rate : job.truth.collectives) rate.byte_us = 1 / bytes_per_us;
    core::Strategy strategy;
    for (int32_t t = 0; t < 4; ++t) {
      strategy.buckets.push_back({{{t, 0, tensors[static_cast<size_t>(t)].numel}}, options[rng.below(options.size())]});
    }
    core::set_default_flow(strategy);
    const core::Strategy after = reorder(strategy, refining());
    ASSERT_TRUE(core::validate(after, job.knowledge.table).ok());
    EXPECT_EQ(after.buckets, strategy.buckets);
    core::Strategy begun = strategy;
    begun.order.clear();
    std::vector<core::Issue> left = strategy.order;
    const double best_ms = best_order_ms(job, begun, left);
    EXPECT_LE(job.step_ms(after), job.step_ms(strategy)) << "job " << number;
    EXPECT_LE(job.step_ms(after), 1.05 * best_ms) << "job " << number;
    helped += job.step_ms(after) < 0.99 * job.step_ms(strategy) ? 1 : 0;
    best += job.step_ms(after) <= 1.002 * best_ms ? 1 : 0;
  }
  EXPECT_GE(helped, kJobs / 10);
  EXPECT_GE(best, kJobs * 17 / 20);
}

TEST_F(Refine, WithoutRunsOrRatesAllStays) {
  const core::Strategy before = baselines(job.knowledge.table, core::Fidelity::exact)[0].strategy;
  EXPECT_EQ(hill_climb(before, refining(1)).buckets, before.buckets);
  job.truth.collectives.clear();
  EXPECT_EQ(hill_climb(before, refining()).buckets, before.buckets);
}

}  // namespace
}  // namespace gradtune::policies
