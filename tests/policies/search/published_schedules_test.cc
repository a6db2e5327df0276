// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/search/published_schedules.h"

#include <gmock/gmock.h>

#include <limits>
#include <string>

#include "policies/cost/forward_pass.h"
#include "policies/cost/timeline.h"
#include "policies/planner.h"
#include "tests/policies/jobs.h"
#include "tests/policies/published_forward.h"

namespace gradtune::policies {
namespace {

using testing::PublishedForward;

double replayed_ms(const PublishedForward& row, const core::GradientTable& table, const Sent& sent) {
  core::Strategy strategy = strategy_in_order(sent);
  strategy.in_flight = 1;  // one channel
  const core::Status status = core::validate(strategy, table);
  EXPECT_TRUE(status.ok()) << status.error().message;
  const double end_us = forward_end_us(*make_linear_cost(row.cost()), table, strategy);
  const double timeline_us =
      Timeline::make(table, strategy, linear_table(row.cost()), testing::known_traits()).value().run();
  EXPECT_NEAR(end_us, timeline_us, 1e-6 * end_us) << "the executor's rules say otherwise";
  return end_us * 1e-3;
}

TEST(PublishedSchedules, EndAsPublished) {
  for (const PublishedForward& row : testing::kPublishedForward) {
    SCOPED_TRACE(row.name());
    const core::GradientTable table = row.table();
    ASSERT_FALSE(table.tensors.empty());
    const ScheduledJob job{.table = table, .cost = row.cost(), .option = core::plain_all_reduce()};
    EXPECT_NEAR(replayed_ms(row, table, wait_free(job)), row.wait_free_ms, 0.1);
    EXPECT_NEAR(replayed_ms(row, table, merged(job)), row.merged_ms, 0.1);
    double partitioned_ms = std::numeric_limits<double>::infinity();
    for (const int64_t most : {100'000L, 1'000'000L, 4'000'000L, 16'000'000L, INT64_MAX}) {
      partitioned_ms = std::min(partitioned_ms, replayed_ms(row, table, partitioned(job, most)));
    }
    EXPECT_NEAR(partitioned_ms, row.partitioned_ms, 0.1);
    EXPECT_NEAR(replayed_ms(row, table, gap_blocks(job, by_read(table))), row.gap_blocks_ms, 0.1);
  }
}

TEST(PublishedSchedules, PlannersEndAsTheirSchedules) {
  for (const PublishedForward& row : testing::kPublishedForward) {
    SCOPED_TRACE(row.name());
    const auto model = make_linear_cost(row.cost());
    Knowledge knowledge = testing::knowledge_of(row.table(), 2, core::Fidelity::exact);
    knowledge.forward_overlap = true;
    const auto ms = [&](std::string_view planner) {
      const Planned planned = plan(planner, {*model, knowledge}).value();
      EXPECT_DOUBLE_EQ(planned.end_us, forward_end_us(*model, knowledge.table, planned.strategy));
      return planned.end_us * 1e-3;
    };
    EXPECT_NEAR(ms("wfbp"), row.wait_free_ms, 0.1);
    EXPECT_NEAR(ms("mgwfbp"), row.merged_ms, 0.1);
    EXPECT_NEAR(ms("bytescheduler"), row.partitioned_ms, 0.1);
    EXPECT_LE(ms("usbyte"), row.gap_blocks_ms + 0.1);
  }
}

TEST(PublishedSchedules, BlocksTileATensorWhateverTheirSize) {
  // The first linear layer of VGG16, 4096 rows of 25088, and a bias that is read first.
  core::GradientTable table =
      testing::make_table({testing::tensor("weight", 102'760'448, 0), testing::tensor("none", 0, 100),
                           testing::tensor("bias", 4096, 9'000)});
  assume_forward(table, 0.5);
  for (const double element_us : {1e-6, 1e-3, 1.0}) {
    const ScheduledJob job{.table = table, .cost = {50, element_us}, .option = core::plain_all_reduce()};
    for (const int64_t most : {100'000L, 500'000L, 1'000'000L, 33'333'333L}) {
      const core::Strategy strategy = strategy_in_order(partitioned(job, most));
      EXPECT_TRUE(core::validate(strategy, table).ok());
      EXPECT_EQ(strategy.buckets.size(), static_cast<size_t>((102'760'448 + most - 1) / most) + 1);
    }
    EXPECT_TRUE(core::validate(strategy_in_order(gap_blocks(job, by_read(table))), table).ok());
  }
}

TEST(PublishedSchedules, ABlockFillsTheTimeUntilTheNextGradient) {
  core::GradientTable table =
      testing::make_table({testing::tensor("large", 10'000'000, 0), testing::tensor("urgent", 10, 1000)});
  assume_forward(table, 1);
  const ScheduledJob job{.table = table, .cost = {100, 1e-3}, .option = core::plain_all_reduce()};
  const Sent sent = gap_blocks(job, by_read(table));
  ASSERT_EQ(sent.size(), 3U);
  EXPECT_EQ(sent[0].slices, (std::vector<core::Slice>{{0, 0, 900'000}}));  // 100 + 900 us
  EXPECT_EQ(sent[1].slices, (std::vector<core::Slice>{{1, 0, 10}}));
  EXPECT_EQ(sent[2].slices, (std::vector<core::Slice>{{0, 900'000, 9'100'000}}));
}

TEST(PublishedSchedules, NeighboursOfOtherTypesAreNotMerged) {
  const core::GradientTable table =
      testing::make_table({testing::tensor("a", 10, 0), testing::tensor("b", 10, 1),
                           testing::tensor("c", 10, 2, core::DType::bf16), testing::tensor("d", 10, 3)});
  const ScheduledJob job{.table = table, .cost = {1000, 1e-3}, .option = core::plain_all_reduce()};
  const core::Strategy strategy = strategy_in_order(merged(job));
  ASSERT_TRUE(core::validate(strategy, table).ok());
  EXPECT_EQ(strategy.buckets.size(), 3U);
}

}  // namespace
}  // namespace gradtune::policies
