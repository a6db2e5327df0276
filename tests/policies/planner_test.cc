// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests planners over programs in which lossy compressors can be summed like gradients.
#include "policies/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "policies/cost/program_cost.h"
#include "policies/space/admission.h"
#include "tests/policies/jobs.h"
#include "tests/policies/timeline_job.h"

namespace gradtune::policies {
namespace {

using core::Place;

const core::CompressorSpec kRandk{"randk", 0.01};

// A large layer, and its bias that is ready last, on links with a high latency.
struct Job {
  Job(const core::Ranks& ranks, const std::vector<core::CompressorSpec>& codecs) {
    const auto table = testing::make_table({testing::tensor("weight", 4'000'000), testing::tensor("bias", 1000, 500)});
    knowledge = testing::knowledge_of(table, ranks.size, core::Fidelity::lossy);
    knowledge.codecs = codecs;
    knowledge.ranks.local_size = ranks.local_size;
    knowledge.host_threads = 1;
    cost = testing::made_up_cost(ranks.size, 20, codecs);
    cost.ranks = ranks;
    for (const core::Step::Kind kind :
         {core::Step::Kind::all_reduce, core::Step::Kind::reduce_scatter, core::Step::Kind::all_gather}) {
      for (const core::Level level : {core::Level::inter, core::Level::intra}) {
        cost.collectives.push_back({kind, level, 10, 1e-3});
      }
    }
  }
  std::unique_ptr<CostModel> model(const std::vector<core::Option>& options) const {
    return std::move(make_program_cost(cost, options, knowledge.traits, knowledge.table.numel())).value();
  }

  Knowledge knowledge;
  CostTable cost;
};

TEST(Planner, TheBaselineIsWhatAUserHasWithoutGradtune) {
  for (const core::Ranks& ranks : {core::Ranks{4, 0}, core::Ranks{16, 4}}) {
    const Job job(ranks, {{"none"}, {"bf16"}, kRandk});
    const auto model = job.model(admitted_options(job.knowledge));
    const Planned planned = plan("baseline", {*model, job.knowledge}).value();
    for (const core::Bucket& bucket : planned.strategy.buckets) {
      EXPECT_EQ(bucket.option, core::encoded_all_reduce({"bf16"}, Place::device));
    }
  }
}

TEST(Planner, TheBaselineIsThereHoweverGoodOthersAre) {
  Job job({4, 0}, {{"bf16"}});
  for (CodecRate& rate : job.cost.codecs) {
    if (rate.place == Place::host) rate.decode_us = rate.decode_element_us = rate.decode_byte_us = 0;
  }
  const core::Option half = core::encoded_all_reduce({"bf16"}, Place::device);
  const auto better = core::parse_option("bf16: encode@device all_reduce decode@host", job.knowledge.traits).value();
  const auto model = job.model({half, better});
  EXPECT_THAT(model->options(), ::testing::Contains(half));
}

TEST(Planner, SmallTensorsAreSentWithoutLossWhateverTheBaselineIs) {
  const Job job({4, 0}, {{"none"}, {"bf16"}, kRandk});
  const auto model = job.model(admitted_options(job.knowledge));
  ASSERT_EQ(job.knowledge.table.first_small(), 1U);
  for (const PlannerRow& row : planner_table()) {
    for (const int pieces : {0, 32}) {
      const Planned planned = plan(row.name, {*model, job.knowledge, pieces}).value();
      for (const core::Bucket& bucket : planned.strategy.buckets) {
        EXPECT_TRUE(core::needed_fidelity(bucket.option, job.knowledge.traits) < core::Fidelity::lossy ||
                    bucket.slices.back().tensor == 0)
            << row.name << ": " << to_string(bucket.option);
      }
    }
  }
}

TEST(Planner, OfManyTensorsPiecesAreSearched) {
  Job job({2, 0}, {{"bf16"}});
  std::vector<core::TensorInfo> tensors;
  for (int t = 0; t < 1500; ++t) tensors.push_back(testing::tensor("t" + std::to_string(t), 5000 + t % 7, t));
  job.knowledge.table = testing::make_table(tensors);
  const auto model = job.model({core::encoded_all_reduce({"bf16"}, Place::device)});
  const auto refused = plan("exhaustive", {*model, job.knowledge});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message, "policy \"exhaustive\" plans for at most 500 tensors, the job has 1500");
  const auto planned = plan("auto", {*model, job.knowledge});
  ASSERT_TRUE(planned.ok());
  EXPECT_TRUE(core::validate(planned.value().strategy, job.knowledge.table).ok());
  EXPECT_LE(planned.value().end_us, plan("baseline", {*model, job.knowledge}).value().end_us);
}

}  // namespace
}  // namespace gradtune::policies
