// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/forecast/what_if.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/compress/compressor.h"
#include "tests/tuner/report/simulated_journal.h"
#include "tuner/files/file_io.h"

namespace gradtune::tuner {
namespace {

using testing::HasSubstr;

const std::vector<const char*> kGolden = {"half_1gbit", "lossy_200mbit", "imported_200mbit"};

RecordedJob golden(const std::string& name) {
  return recorded_job(parse_journal(read_file(GRADTUNE_JOURNALS "/" + name + ".jsonl", 1 << 20).value()).value())
      .value();
}

double baseline_ms(const RecordedJob& job, const WhatIf& what) { return answer(what, job).value().baseline.ms; }

// One tensor, so that the baseline is one sum of it, and a step can be calculated by hand.
constexpr int64_t kNumel = 1 << 20;
constexpr double kBytes = 4.0 * kNumel, kReadyUs = 30'000;

// A job of four ranks at 800 Mbit/s. A message takes 140 us, in 100 of which it only travels.
RecordedJob made_up_job(const policies::IdleLink& idle = {}) {
  core::GradientTable table;
  table.tensors.push_back({.name = "weight", .shape = {kNumel}, .numel = kNumel, .ready_us = kReadyUs});
  const policies::CostTable cost{.ranks = {.size = 4},
                                 .collectives = {{core::Step::Kind::all_reduce, core::Level::flat, 140, 0.012, 100}}};
  policies::Knowledge knowledge{.table = table,
                                .ranks = cost.ranks,
                                .fidelity = core::Fidelity::exact,
                                .codecs = {{"none"}},
                                .traits = compress::known_traits()};
  knowledge.machine.idle_links.flat = idle;
  return {.knowledge = knowledge,
          .model = policies::StepTimePredictor::of(table, knowledge.traits, cost),
          .link = {.rate_mbit = 800, .delay_us = 50}};
}

// A ring of g ranks passes 2 (g - 1) messages, and 2 (g - 1) / g of the bytes.
double ring_ms(int ranks, double handling_us, double wait_us, double byte_us) {
  const double messages = 2 * (ranks - 1);
  return 1e-3 * (kReadyUs + messages * (handling_us + wait_us) + messages / ranks * kBytes * byte_us);
}

TEST(WhatIf, IsTheArithmeticOfARing) {
  const RecordedJob job = made_up_job();
  const core::Ranks four{.size = 4};
  EXPECT_NEAR(baseline_ms(job, {four, {800, 50}}), ring_ms(4, 40, 100, 0.012), 1e-9);
  for (const int ranks : {2, 8, 64, 4096}) {
    EXPECT_NEAR(baseline_ms(job, {{.size = ranks}, {800, 50}}), ring_ms(ranks, 40, 100, 0.012), 1e-6) << ranks;
  }
  // A byte takes 0.01 us on the link, and 0.002 us besides.
  EXPECT_NEAR(baseline_ms(job, {four, {1600, 50}}), ring_ms(4, 40, 100, 0.007), 1e-9);
  EXPECT_NEAR(baseline_ms(job, {four, {100, 50}}), ring_ms(4, 40, 100, 0.082), 1e-9);
  // A message takes two delays.
  EXPECT_NEAR(baseline_ms(job, {four, {800, 250}}), ring_ms(4, 40, 500, 0.012), 1e-9);
  EXPECT_NEAR(baseline_ms(job, {four, {800, 0}}), ring_ms(4, 40, 0, 0.012), 1e-9);
  EXPECT_NEAR(baseline_ms(job, {{.size = 16}, {80, 1050}}), ring_ms(16, 40, 2100, 0.102), 1e-9);
}

TEST(WhatIf, FurtherMessagesTakeWhatTheyTakeOnAnIdleLink) {
  const RecordedJob job = made_up_job({.message_us = 80, .wait_us = 60, .byte_us = 0.01});
  EXPECT_NEAR(baseline_ms(job, {{.size = 4}, {800, 50}}), ring_ms(4, 40, 100, 0.012), 1e-9);
  for (const int ranks : {5, 64, 4096}) {
    const double messages = 2 * (ranks - 1), handling_us = (6 * 40 + (messages - 6) * 20) / messages,
                 wait_us = (6 * 100 + (messages - 6) * 60) / messages;
    const double whole_bytes = 1e-5;  // a ring's share of the bytes is rounded
    EXPECT_NEAR(baseline_ms(job, {{.size = ranks}, {800, 50}}), ring_ms(ranks, handling_us, wait_us, 0.012),
                whole_bytes)
        << ranks;
  }
}

// A link of 60 bytes a microsecond was recorded. The truth is the timeline of the same job elsewhere.
TEST(WhatIf, IsTheTruthOfASimulatedJobElsewhere) {
  const RecordedJob job = recorded_job(parse_journal(reference_journal(400).text).value()).value();
  constexpr double kMbit = 8;
  EXPECT_NEAR(job.link.rate_mbit, 60 * kMbit, 0.1 * 60 * kMbit);
  for (const auto& [ranks, bytes_per_us] :
       {std::pair(4, 60.0), {4, 20.0}, {4, 240.0}, {2, 60.0}, {8, 60.0}, {32, 60.0}, {32, 240.0}}) {
    const auto truth = reference_truth(ranks, bytes_per_us);
    const double rate_mbit = job.link.rate_mbit * bytes_per_us / 60;
    const auto found = answer({{.size = ranks}, {rate_mbit, job.link.delay_us}}, job);
    ASSERT_TRUE(found);
    EXPECT_NEAR(found->baseline.ms, truth.baseline_ms(), 0.05 * truth.baseline_ms()) << ranks << " " << bytes_per_us;
    const double choice_ms = truth.step_ms(found->choice.strategy);
    EXPECT_NEAR(found->choice.ms, choice_ms, 0.05 * choice_ms) << ranks << " " << bytes_per_us;
    EXPECT_LT(choice_ms, truth.baseline_ms()) << "the choice is better in truth";
  }
}

TEST(WhatIf, AtHomeItIsTheModelOfTheJob) {
  for (const char* const name : kGolden) {
    const RecordedJob job = golden(name);
    const auto home = answer({job.knowledge.ranks, job.link}, job);
    ASSERT_TRUE(home);
    EXPECT_NEAR(home->baseline.ms, forecast_baseline(job.knowledge, job.model)->ms, 1e-6);
    EXPECT_LE(home->choice.ms, home->baseline.ms);
    for (const RanStrategy& ran : job.ran) {
      if (core::needed_fidelity(ran.candidate.strategy, job.knowledge.traits) > job.knowledge.fidelity) continue;
      EXPECT_LE(home->choice.ms, ran.expected_ms + 1e-6) << ran.candidate.label;
    }
  }
}

TEST(WhatIf, MoreRateIsNeverSlowerAndMoreDelayNeverFaster) {
  for (const char* const name : kGolden) {
    const RecordedJob job = golden(name);
    for (const int ranks : {2, 16, 4096}) {
      double before_ms = std::numeric_limits<double>::infinity();
      for (const double rate_mbit : {10.0, 100.0, 180.0, 200.0, 1000.0, 1500.0, 10'000.0, 400'000.0}) {
        const auto found = answer({{.size = ranks}, {rate_mbit, job.link.delay_us}}, job);
        EXPECT_LE(found->baseline.ms, before_ms + 1e-6) << name << " " << ranks << " " << rate_mbit;
        EXPECT_LE(found->choice.ms, found->baseline.ms);
        before_ms = found->baseline.ms;
      }
      before_ms = 0;
      for (const double delay_us : {0.0, 5.0, 50.0, 500.0, 1000.0, 2000.0, 5000.0, 100'000.0}) {
        const auto found = answer({{.size = ranks}, {job.link.rate_mbit, delay_us}}, job);
        EXPECT_GE(found->baseline.ms, before_ms - 1e-6) << name << " " << ranks << " " << delay_us;
        before_ms = found->baseline.ms;
      }
    }
    double before_ms = 0;
    for (const int ranks : {2, 4, 8, 64, 512, 4096}) {
      const double ms = baseline_ms(job, {{.size = ranks}, job.link});
      EXPECT_GE(ms, before_ms) << name << " " << ranks;
      before_ms = ms;
    }
  }
}

// The ranks of a node share its link, and none of the recorded times is of messages inside nodes.
TEST(WhatIf, WithoutTimesInsideNodesEveryProgramRunsOverAllRanks) {
  const RecordedJob job = golden("half_1gbit");
  const auto found = answer({{.size = 64, .local_size = 8}, {25'000, 50}}, job);
  ASSERT_TRUE(found);
  EXPECT_FALSE(found->knows_levels);
  EXPECT_TRUE(answer({{.size = 64}, {25'000, 50}}, job)->knows_levels) << "there are no nodes to know of";
  for (const core::Bucket& bucket : found->choice.strategy.buckets) EXPECT_FALSE(core::uses_levels(bucket.option));
}

TEST(WhatIf, AllCombinationsAreAskedFor) {
  const RecordedJob job = made_up_job();
  const auto all = combinations({.world_sizes = {2, 8}, .rates_mbit = {100, 200}, .delays_us = {1, 2, 3}}, job);
  ASSERT_TRUE(all.ok());
  ASSERT_EQ(all.value().size(), 12U);
  EXPECT_EQ(all.value()[0], (WhatIf{{.size = 2}, {100, 1}}));
  EXPECT_EQ(all.value()[11], (WhatIf{{.size = 8}, {200, 3}}));
  EXPECT_EQ(combinations({}, job).value(), (std::vector{WhatIf{{.size = 4}, {800, 50}}})) << "as recorded";
  EXPECT_EQ(combinations({.world_sizes = {16}, .ranks_per_node = 4}, job).value()[0].ranks,
            (core::Ranks{.size = 16, .local_size = 4}));
  EXPECT_EQ(combinations({.world_sizes = {16}, .ranks_per_node = 1}, job).value()[0].ranks, core::Ranks{.size = 16});
}

TEST(WhatIf, QuestionsThatCanNotBeAnsweredAreNamed) {
  RecordedJob job = made_up_job();
  const auto why = [&](const WhatIfs& asked) { return combinations(asked, job).error().message; };
  EXPECT_EQ(why({.world_sizes = {1}}), "--world-size 1 is not allowed; allowed are 2 to 4096 ranks");
  EXPECT_EQ(why({.world_sizes = {4097}}), "--world-size 4097 is not allowed; allowed are 2 to 4096 ranks");
  EXPECT_EQ(why({.world_sizes = {10}, .ranks_per_node = 4}), "--ranks-per-node 4 does not divide --world-size 10");
  EXPECT_EQ(why({.rates_mbit = std::vector<double>(257, 1)}),
            "--world-size, --rate and --delay make 257 combinations; 256 are allowed");
  job.knowledge.ranks = {.size = 4, .local_size = 2};
  EXPECT_THAT(why({.world_sizes = {9}}), HasSubstr("has 2 ranks on each node, which does not divide --world-size 9"));
  EXPECT_EQ(combinations({.world_sizes = {8}}, job).value()[0].ranks, (core::Ranks{.size = 8, .local_size = 2}));
}

TEST(WhatIf, RatesAndDelaysHaveUnits) {
  EXPECT_EQ(parse_rate_mbit("200mbit").value(), 200);
  EXPECT_EQ(parse_rate_mbit("25gbit").value(), 25'000);
  EXPECT_EQ(parse_rate_mbit("1.5kbit").value(), 1.5e-3);
  EXPECT_EQ(parse_delay_us("50us").value(), 50);
  EXPECT_EQ(parse_delay_us("1.5ms").value(), 1500);
  EXPECT_EQ(parse_delay_us("0us").value(), 0);
  for (const char* const text : {"", "25", "gbit", "25 gbit", "25Gbit", "25gbits", "-1mbit", "0mbit", "nanmbit",
                                 "infgbit", "1e400gbit", "100tbit"}) {
    const auto rate = parse_rate_mbit(text);
    ASSERT_FALSE(rate.ok()) << text;
    EXPECT_THAT(rate.error().message, HasSubstr("such as 200mbit or 25gbit"));
  }
  for (const char* const text : {"", "50", "us", "-1us", "11s", "50mus", "nanus"}) {
    const auto delay = parse_delay_us(text);
    ASSERT_FALSE(delay.ok()) << text;
    EXPECT_THAT(delay.error().message, HasSubstr("such as 50us or 1.5ms"));
  }
}

}  // namespace
}  // namespace gradtune::tuner
