// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/step_time_predictor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "policies/space/baseline.h"
#include "policies/space/partition.h"
#include "tests/policies/jobs.h"
#include "tests/policies/timeline_job.h"

namespace gradtune::policies {
namespace {

using core::Place;
using testing::TimelineJob;

TimelineJob job() {
  TimelineJob job{.knowledge = testing::knowledge_of(testing::reference_table(), 4, core::Fidelity::lossy)};
  job.knowledge.host_threads = 1;
  job.truth = testing::made_up_cost(4, 50, job.knowledge.codecs);
  return job;
}

core::Strategy strategy_of(const TimelineJob& job, int buckets, const core::Option& option) {
  core::Strategy strategy =
      core::uniform(nested_partitions(job.knowledge.table, buckets).back(), option, /*in_flight=*/1);
  core::set_default_flow(strategy);
  return strategy;
}

TEST(StepTimePredictor, WithoutATimedStepThereIsNone) {
  const auto forecast = StepTimePredictor::make(job().knowledge, {});
  ASSERT_FALSE(forecast.ok());
  EXPECT_THAT(forecast.error().message, ::testing::HasSubstr("no step of the job was timed"));
}

TEST(StepTimePredictor, IsTheTruthOnceEverythingWasSeen) {
  const TimelineJob job = ::gradtune::policies::job();
  core::Rng rng(1);
  Knowledge knowledge = job.observed(0, rng);
  const core::CompressorSpec topk{"topk", 0.01};
  for (const int buckets : {3, 8}) {
    knowledge.timed.push_back(job.timed(strategy_of(job, buckets, core::gather_payloads(topk, Place::device)), 0, rng));
  }
  const auto forecast = StepTimePredictor::make(knowledge, {});
  ASSERT_TRUE(forecast.ok());
  for (const int buckets : {1, 2, 5, 12}) {
    for (const core::Option& option : {core::plain_all_reduce(), core::encoded_all_reduce({"bf16"}, Place::device),
                                       core::gather_payloads(topk, Place::device)}) {
      const core::Strategy strategy = strategy_of(job, buckets, option);
      const auto step = forecast.value().step(strategy);
      ASSERT_TRUE(step);
      EXPECT_NEAR(step->ms, job.step_ms(strategy), 0.02 * job.step_ms(strategy));
      EXPECT_LT(step->error_ms, 0.01 * step->ms);
    }
  }
}

// What lies in the timeline is not in the rest as well.
TEST(StepTimePredictor, KnowsForwardAndUpdatesWhereTheyWereMeasured) {
  TimelineJob job = ::gradtune::policies::job();
  core::GradientTable& table = job.knowledge.table;
  table.forward_us = 40'000;
  table.update_element_us = 30'000 / static_cast<double>(table.numel());
  for (size_t t = 0; t < table.tensors.size(); ++t) {
    table.tensors[t].read_us = table.forward_us * static_cast<double>(table.tensors.size() - 1 - t) /
                               static_cast<double>(table.tensors.size());
  }
  core::Rng rng(1);
  const auto forecast = StepTimePredictor::make(job.observed(0, rng), {});
  ASSERT_TRUE(forecast.ok());
  for (const core::Due due : {core::Due::backward, core::Due::forward}) {
    core::Strategy strategy = strategy_of(job, 5, core::plain_all_reduce());
    for (core::Bucket& bucket : strategy.buckets) bucket.due = due;
    const auto step = forecast.value().step(strategy);
    ASSERT_TRUE(step);
    EXPECT_NEAR(step->ms, job.step_ms(strategy), 0.02 * job.step_ms(strategy));
  }
}

TEST(StepTimePredictor, WhatNeverRanLooksCheapAndIsMarkedAsAPrior) {
  const TimelineJob job = ::gradtune::policies::job();
  core::Rng rng(1);
  const auto forecast = StepTimePredictor::make(job.observed(0, rng), {});
  ASSERT_TRUE(forecast.ok());
  const core::CompressorSpec topk{"topk", 0.01};
  const FittedCost& cost = forecast.value().cost();
  const CodecRate *known = find_rate(cost.table, topk, Place::host),
                  *true_rate = find_rate(job.truth, topk, Place::host);
  ASSERT_NE(known, nullptr);
  EXPECT_LT(known->encode_element_us, true_rate->encode_element_us);
  EXPECT_EQ(cost.codecs[static_cast<size_t>(known - cost.table.codecs.data())].samples, 0);
  const core::Strategy strategy = strategy_of(job, 3, core::gather_payloads(topk, Place::host));
  EXPECT_LT(forecast.value().step(strategy)->ms, job.step_ms(strategy));
}

TEST(StepTimePredictor, AMeasuredKindIsPredictedAsItRan) {
  const TimelineJob job = ::gradtune::policies::job();
  core::Rng rng(1);
  const Knowledge knowledge = job.observed(0, rng);
  const core::Option bf16 = core::encoded_all_reduce({"bf16"}, Place::device);
  const core::Strategy ran = strategy_of(job, 3, bf16), alike = strategy_of(job, 4, bf16),
                       other = strategy_of(job, 4, core::plain_all_reduce());
  const auto before = StepTimePredictor::make(knowledge, {});
  const MeasuredStrategy slow{ran, 1.3 * before.value().step(ran)->ms};
  const auto after = StepTimePredictor::make(knowledge, std::span(&slow, 1));
  EXPECT_NEAR(after.value().step(ran)->ms, slow.step_ms, 1e-6);
  EXPECT_NEAR(after.value().step(alike)->ms, 1.3 * before.value().step(alike)->ms, 1e-6);
  EXPECT_NEAR(after.value().step(other)->ms, before.value().step(other)->ms, 1e-6);
}

TEST(StepTimePredictor, SaysHowFarItMayBeOff) {
  const TimelineJob job = ::gradtune::policies::job();
  const auto error_ms = [&](double noise) {
    core::Rng rng(5);
    const core::Strategy strategy = strategy_of(job, 4, core::plain_all_reduce());
    return StepTimePredictor::make(job.observed(noise, rng), {}).value().step(strategy)->error_ms;
  };
  EXPECT_LT(error_ms(0.01), 0.3 * error_ms(0.2));
}

}  // namespace
}  // namespace gradtune::policies
