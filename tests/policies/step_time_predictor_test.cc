// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/step_time_predictor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "policies/cost/timeline.h"
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

// Time in the timeline is not counted again in the rest.
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

TEST(StepTimePredictor, ElsewhereIsTheSameJobUnderOtherCosts) {
  const TimelineJob job = ::gradtune::policies::job();
  core::Rng rng(1);
  const StepTimePredictor here = StepTimePredictor::make(job.observed(0, rng), {}).value();
  const core::Strategy strategy = strategy_of(job, 5, core::plain_all_reduce());
  const double ms = here.step(strategy)->ms;
  const auto as_it_is = [](CostTable&) {};
  EXPECT_EQ(here.elsewhere(as_it_is).step(strategy)->ms, ms);
  const auto free = [](CostTable& cost) {
    for (CollectiveRate& rate : cost.collectives) rate.message_us = rate.wait_us = rate.byte_us = 0;
    cost.scale_us = cost.scale_element_us = 0;
  };
  const double computation_ms = here.elsewhere(free).step(strategy)->ms;
  EXPECT_NEAR(computation_ms, job.rest_ms + job.knowledge.table.tensors.back().ready_us * 1e-3, 0.02 * ms);
  EXPECT_NEAR(here.elsewhere(free, 3).step(strategy)->ms, 3 * computation_ms, 1e-6);
  EXPECT_GT(here.elsewhere(as_it_is, 3).step(strategy)->ms, ms);
}

TEST(StepTimePredictor, OfACostTableIsItsTimeline) {
  const TimelineJob job = ::gradtune::policies::job();
  const auto of_truth = StepTimePredictor::of(job.knowledge.table, job.knowledge.traits, job.truth);
  const core::Strategy strategy = strategy_of(job, 5, core::encoded_all_reduce({"bf16"}, Place::device));
  EXPECT_NEAR(of_truth.step(strategy)->ms, job.step_ms(strategy) - job.rest_ms, 1e-9);
  EXPECT_EQ(of_truth.step(strategy)->error_ms, 0);
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

// Over a fast link a core spends a quarter of its time on network traffic, at the cost of backward. It spends more
// if a strategy has more in flight at that time. Ready times were observed beside the baseline's collectives.
TEST(StepTimePredictor, KnowsThatBytesOnTheNetworkTakeAPartOfTheCores) {
  TimelineJob job = ::gradtune::policies::job();
  job.knowledge.host_threads = 0;
  job.truth = testing::made_up_cost(4, 400, job.knowledge.codecs);
  job.truth.cores = {.of_rank = 1, .computing = 1, .network = 0.25};
  core::Rng rng(1);
  Knowledge knowledge = job.observed(0, rng);
  const core::CompressorSpec topk{"topk", 0.01};
  for (const int buckets : {3, 8}) {
    knowledge.timed.push_back(job.timed(strategy_of(job, buckets, core::gather_payloads(topk, Place::device)), 0, rng));
  }
  std::vector<Span> spans;
  Timeline::make(knowledge.table, baselines(knowledge.table, knowledge.fidelity)[0].strategy, job.truth,
                 knowledge.traits)
      .value()
      .run(spans);
  double ready_us = 0;
  for (const Span& span : spans) {
    if (span.bucket >= 0 || span.phase != Phase::backward) continue;
    ready_us += span.end_us - span.begin_us;
    knowledge.table.tensors[static_cast<size_t>(span.step)].ready_us = ready_us;
  }
  EXPECT_GT(ready_us, 1.03 * job.knowledge.table.tensors.back().ready_us) << "what this test is about";
  knowledge.compute_ms += (ready_us - job.knowledge.table.tensors.back().ready_us) * 1e-3;
  const auto worst_error = [&](const Cores& cores) {
    knowledge.machine.cores = cores;
    const auto forecast = StepTimePredictor::make(knowledge, {});
    double worst = 0;
    for (const int buckets : {1, 2, 5, 12}) {
      for (const core::Option& option : {core::plain_all_reduce(), core::gather_payloads(topk, Place::device)}) {
        const core::Strategy strategy = strategy_of(job, buckets, option);
        worst = std::max(worst, std::abs(forecast.value().step(strategy)->ms / job.step_ms(strategy) - 1));
      }
    }
    return worst;
  };
  EXPECT_LT(worst_error(job.truth.cores), 0.03);
  EXPECT_GT(worst_error({.of_rank = 1, .computing = 1}), 0.06);
}

TEST(StepTimePredictor, LateBucketsAreAKindOfTheirOwnOnceTheyRan) {
  const TimelineJob job = ::gradtune::policies::job();
  core::Rng rng(1);
  const Knowledge knowledge = job.observed(0, rng);
  const core::Strategy ran = strategy_of(job, 3, core::plain_all_reduce());
  core::Strategy late = ran;
  late.buckets[1].due = core::Due::forward;
  const auto before = StepTimePredictor::make(knowledge, {});
  std::vector<MeasuredStrategy> measured = {{ran, 1.1 * before.value().step(ran)->ms}};
  const auto predicted = [&](const core::Strategy& strategy) {
    return StepTimePredictor::make(knowledge, measured).value().step(strategy)->ms / before.value().step(strategy)->ms;
  };
  EXPECT_NEAR(predicted(late), 1.1, 1e-9);
  measured.push_back({late, 1.3 * before.value().step(late)->ms});
  EXPECT_NEAR(predicted(late), 1.3, 1e-9);
  EXPECT_NEAR(predicted(ran), 1.1, 1e-9);
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
