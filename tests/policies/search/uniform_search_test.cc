// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/search/uniform_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "policies/space/partition.h"
#include "policies/space/schemes.h"
#include "tests/policies/jobs.h"
#include "tests/policies/timeline_job.h"

namespace gradtune::policies {
namespace {

class Fusion : public ::testing::TestWithParam<double> {  // bytes per microsecond of the link
 protected:
  Fusion() {
    job.knowledge = testing::knowledge_of(testing::reference_table(), 4, core::Fidelity::lossy);
    job.truth = testing::made_up_cost(4, GetParam(), job.knowledge.codecs);
    forms = admitted_schemes(job.knowledge);
    for (const Scheme& form : forms) options.push_back(form.option);
  }

  testing::TimelineJob job;
  std::vector<Scheme> forms;
  std::vector<core::Option> options;
};

TEST_P(Fusion, EndsAboutAsEarlyAsTheBestOfAllOptionsAndPartitions) {
  const auto found = best_uniform(job.knowledge, job.truth, options);
  ASSERT_TRUE(found);
  EXPECT_TRUE(core::validate(*found, job.knowledge.table).ok());
  double best_ms = std::numeric_limits<double>::infinity();
  for (const Scheme& form : forms) {
    for (const Partition& partition : nested_partitions(job.knowledge.table, 16)) {
      best_ms = std::min(best_ms, job.step_ms(apply(form, partition, job.knowledge).strategy));
    }
  }
  EXPECT_LE(job.step_ms(*found), 1.01 * best_ms);
}

TEST_P(Fusion, SmallTensorsAreNotForOptionsThatLose) {
  const core::Option lossy = core::gather_payloads({"topk", 0.01}, core::Place::device);
  const auto found = best_uniform(job.knowledge, job.truth, std::vector{lossy});
  ASSERT_TRUE(found);
  const auto first_small = static_cast<int32_t>(job.knowledge.table.first_small());
  int losing = 0;
  for (const core::Bucket& bucket : found->buckets) {
    if (bucket.option != lossy) continue;
    ++losing;
    EXPECT_LT(bucket.slices.back().tensor, first_small);
  }
  EXPECT_GE(losing, 1);
}

TEST_P(Fusion, NeedsRates) {
  EXPECT_FALSE(best_uniform(job.knowledge, {.ranks = job.truth.ranks}, options));
  EXPECT_FALSE(best_uniform(job.knowledge, job.truth, {}));
}

INSTANTIATE_TEST_SUITE_P(Links, Fusion, ::testing::Values(10, 30, 125, 1000));

}  // namespace
}  // namespace gradtune::policies
