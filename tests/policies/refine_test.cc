// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/refine.h"

#include <gtest/gtest.h>

#include "policies/baseline.h"
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
  RefineJob refining(int most_runs = 200) const {
    return {job.knowledge.table, job.truth, job.knowledge.traits, options, most_runs};
  }

  testing::TimelineJob job;
  std::vector<core::Option> options;
};

TEST_F(Refine, EndsEarlierAndFitsTheTable) {
  const core::Strategy before = baselines(job.knowledge.table, core::Fidelity::exact)[0].strategy;
  const core::Strategy after = refine(before, refining());
  EXPECT_TRUE(core::validate(after, job.knowledge.table).ok());
  EXPECT_LT(job.step_ms(after), 0.8 * job.step_ms(before));
  EXPECT_EQ(refine(after, refining()), after) << "nothing is left that helps";
}

TEST_F(Refine, SmallTensorsAreNotForOptionsThatLose) {
  const core::Strategy after = refine(baselines(job.knowledge.table, core::Fidelity::exact)[0].strategy, refining());
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
  const core::Strategy one_by_one = refine(before, refining());
  EXPECT_EQ(one_by_one.in_flight, 2);
  job.truth.collectives[0].wait_us = job.truth.collectives[0].message_us;
  const core::Strategy after = refine(before, refining());
  EXPECT_EQ(after.in_flight, 4);
  EXPECT_GT(after.buckets.size(), one_by_one.buckets.size());
  const double least_ms = 70 + 8 + 30;
  EXPECT_LE(job.step_ms(after) - job.rest_ms, 1.08 * least_ms);
  EXPECT_GE(job.step_ms(one_by_one) - job.rest_ms, 1.2 * least_ms);
}

TEST_F(Refine, WithoutRunsOrRatesAllStays) {
  const core::Strategy before = baselines(job.knowledge.table, core::Fidelity::exact)[0].strategy;
  EXPECT_EQ(refine(before, refining(1)).buckets, before.buckets);
  job.truth.collectives.clear();
  EXPECT_EQ(refine(before, refining()).buckets, before.buckets);
}

}  // namespace
}  // namespace gradtune::policies
