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

TEST_F(Refine, WithoutRunsOrRatesAllStays) {
  const core::Strategy before = baselines(job.knowledge.table, core::Fidelity::exact)[0].strategy;
  EXPECT_EQ(refine(before, refining(1)).buckets, before.buckets);
  job.truth.collectives.clear();
  EXPECT_EQ(refine(before, refining()).buckets, before.buckets);
}

}  // namespace
}  // namespace gradtune::policies
