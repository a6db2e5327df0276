// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/cost/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "engine/core/rng.h"
#include "policies/cost/cost_model.h"
#include "policies/cost/program_cost.h"
#include "policies/space/decision_tree.h"
#include "tests/policies/jobs.h"

namespace gradtune::policies {
namespace {

using core::Level;
using core::Place;
using Kind = core::Step::Kind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const core::CompressorSpec kBf16{"bf16"};

// Two ranks. An all_reduce of n elements takes n us, encoding n / 10 and decoding n / 5 on the device, twice that on
// the host.
CostTable simple_table() {
  CostTable table{.ranks = {.size = 2}};
  table.collectives = {{Kind::all_reduce, Level::flat, 0, 0.25}, {Kind::all_gather, Level::flat, 0, 0.5}};
  table.codecs = {{kBf16, Place::device, 0, 0.1, 0, 0.2, 0}, {kBf16, Place::host, 0, 0.2, 0, 0.4, 0}};
  return table;
}

core::GradientTable table_of(const std::vector<std::pair<int64_t, double>>& tensors) {
  core::GradientTable table;
  for (const auto& [numel, ready_us] : tensors) {
    table.tensors.push_back(
        {.name = std::to_string(table.tensors.size()), .shape = {numel}, .numel = numel, .ready_us = ready_us});
  }
  return table;
}

// A bucket for each tensor.
core::Strategy apart(const core::GradientTable& table, const char* option, int in_flight) {
  std::vector<std::vector<core::Slice>> buckets;
  for (size_t t = 0; t < table.tensors.size(); ++t)
    buckets.push_back({{static_cast<int32_t>(t), 0, table.tensors[t].numel}});
  return core::uniform(std::move(buckets), core::parse_option(option, testing::known_traits()).value(), in_flight);
}

Timeline timeline_of(const core::GradientTable& table, const core::Strategy& strategy, const CostTable& cost) {
  return Timeline::make(table, strategy, cost, testing::known_traits()).value();
}

TEST(Timeline, AnAllReduceWaitsForItsGradientAndTheLink) {
  const core::GradientTable table = table_of({{160, 0}, {320, 100}, {16, 120}});
  Timeline timeline = timeline_of(table, apart(table, "all_reduce", 2), simple_table());
  std::vector<Span> spans;
  EXPECT_EQ(timeline.run(spans), 160 + 320 + 16);
  EXPECT_EQ(timeline.run(), 160 + 320 + 16);
  std::map<int32_t, Span> collectives;
  for (const Span& span : spans) {
    if (span.server == Server::link) collectives[span.bucket] = span;
  }
  EXPECT_EQ(collectives[0], (Span{Server::link, 0, 0, 0, 160}));
  EXPECT_EQ(collectives[1], (Span{Server::link, 1, 0, 160, 480}));
  EXPECT_EQ(collectives[2], (Span{Server::link, 2, 0, 480, 496}));
}

// Copies in each direction run one after the other, beside all other work.
TEST(Timeline, GradientsOfADeviceAreCopiedToTheHostAndBack) {
  CostTable cost = simple_table();
  cost.on_device = {.gradients = true, .collectives = false, .kernels = true};
  cost.to_host = {10, 0.05};
  cost.to_device = {20, 0.025};
  const core::GradientTable table = table_of({{160, 0}, {320, 100}});
  std::vector<Span> spans;
  EXPECT_EQ(timeline_of(table, apart(table, "all_reduce", 2), cost).run(spans), 574);
  std::map<std::pair<Server, int32_t>, Span> found;
  for (const Span& span : spans) found[{span.server, span.bucket}] = span;
  EXPECT_EQ((found[{Server::to_host, 0}]), (Span{Server::to_host, 0, kToHostStep, 0, 42}));
  EXPECT_EQ((found[{Server::link, 0}]), (Span{Server::link, 0, 0, 42, 202}));
  EXPECT_EQ((found[{Server::to_device, 0}]), (Span{Server::to_device, 0, kToDeviceStep, 202, 238}));
  EXPECT_EQ((found[{Server::to_host, 1}]), (Span{Server::to_host, 1, kToHostStep, 100, 174}));
  EXPECT_EQ((found[{Server::link, 1}]), (Span{Server::link, 1, 0, 202, 522}));
  EXPECT_EQ((found[{Server::to_device, 1}]), (Span{Server::to_device, 1, kToDeviceStep, 522, 574}));
  cost.on_device.collectives = true;
  EXPECT_EQ(timeline_of(table, apart(table, "all_reduce", 2), cost).run(), 480) << "nothing is copied";
  cost.on_device = {};
  EXPECT_EQ(timeline_of(table, apart(table, "all_reduce", 2), cost).run(), 480);
}

// Encoding on the host copies the whole gradient there; only the decoded values come back.
TEST(Timeline, WhatTheHostEncodesIsBroughtThere) {
  CostTable cost = simple_table();
  cost.on_device = {.gradients = true, .collectives = true, .kernels = true};
  cost.to_host = cost.to_device = {0, 0.05};
  const core::GradientTable table = table_of({{160, 0}});
  std::vector<Span> spans;
  timeline_of(table, apart(table, "bf16: encode@host all_gather decode@host", 2), cost).run(spans);
  std::vector<std::tuple<Server, int32_t, double>> took;
  for (const Span& span : spans) {
    if (span.bucket >= 0)
      took.emplace_back(span.server, span.step, std::round(10 * (span.end_us - span.begin_us)) / 10);
  }
  EXPECT_THAT(took, ElementsAre(std::tuple(Server::to_host, kToHostStep, 32), std::tuple(Server::host, 0, 32),
                                std::tuple(Server::to_device, kToDeviceStep, 16), std::tuple(Server::link, 1, 160),
                                std::tuple(Server::to_host, kToHostStep, 32), std::tuple(Server::host, 2, 64),
                                std::tuple(Server::to_device, kToDeviceStep, 32)));
}

TEST(Timeline, WhatTheDeviceDoesDelaysBackwardAndWhatComesLateIsDoneInTheNextHook) {
  // Bucket 0 is encoded at once until 16, gathered until 96 (160 bytes each way at 0.5), and decoded when the hook
  // of the second gradient runs. That gradient is ready at 100 + 16 and encoded until 148, and the decode of bucket
  // 0 follows.
  const core::GradientTable table = table_of({{160, 0}, {320, 100}, {16, 500}});
  const core::Strategy strategy = apart(table, "bf16: encode@device all_gather decode@device", 2);
  Timeline timeline = timeline_of(table, strategy, simple_table());
  std::vector<Span> spans;
  timeline.run(spans);
  const auto span_of = [&](int32_t bucket, int32_t step) {
    return *std::find_if(spans.begin(), spans.end(),
                         [&](const Span& span) { return span.bucket == bucket && span.step == step; });
  };
  EXPECT_EQ(span_of(0, 0), (Span{Server::device, 0, 0, 0, 16}));
  EXPECT_EQ(span_of(0, 1), (Span{Server::link, 0, 1, 16, 16 + 160}));
  EXPECT_EQ(span_of(-1, 1), (Span{Server::device, -1, 1, 16, 116}));
  EXPECT_EQ(span_of(1, 0), (Span{Server::device, 1, 0, 116, 148}));
  EXPECT_EQ(span_of(1, 1), (Span{Server::link, 1, 1, 176, 496}));
  // Backward continues from 148 to 548; both decodes wait for its hook, after the last bucket's encode.
  EXPECT_EQ(span_of(2, 0).begin_us, 548);
  EXPECT_NEAR(span_of(0, 2).begin_us, 549.6, 1e-9);
  EXPECT_NEAR(span_of(1, 2).begin_us, 549.6 + 32, 1e-9);
}

TEST(Timeline, TheHostWorksBesideBackward) {
  const core::GradientTable table = table_of({{160, 0}, {320, 100}});
  const core::Strategy strategy = apart(table, "bf16: encode@host all_gather decode@host", 2);
  std::vector<Span> spans;
  timeline_of(table, strategy, simple_table()).run(spans);
  std::vector<double> host;
  for (const Span& span : spans) {
    if (span.server == Server::host) host.push_back(span.end_us);
    if (span.bucket < 0 && span.step == 1) {
      EXPECT_EQ(span.end_us, 100);
    }
  }
  // Encode 0 until 32; encode 1 from 100 until 164; gather 0 until 192, decode until 256; gather 1 until 512, decode.
  EXPECT_THAT(host, ElementsAre(32, 164, 256, 640));
}

TEST(Timeline, InFlightAndOrderAreKept) {
  // Both buckets have two collectives; one at a time, in an order that puts the second bucket first.
  const core::GradientTable table = table_of({{160, 0}, {320, 0}});
  core::Strategy strategy =
      apart(table, "bf16: encode@host all_to_all decode@host encode@host all_gather decode@host", 1);
  strategy.order = {{1, 1}, {0, 1}, {0, 4}, {1, 4}};
  CostTable cost = simple_table();
  cost.collectives.push_back({Kind::all_to_all, Level::flat, 0, 1});
  std::vector<Span> spans;
  timeline_of(table, strategy, cost).run(spans);
  std::vector<std::pair<int32_t, int32_t>> issued;
  double free_us = 0;
  for (const Span& span : spans) {
    if (span.server != Server::link) continue;
    EXPECT_GE(span.begin_us, free_us);
    free_us = span.end_us;
    issued.push_back({span.bucket, span.step});
  }
  EXPECT_THAT(issued, ElementsAre(std::pair(1, 1), std::pair(0, 1), std::pair(0, 4), std::pair(1, 4)));
}

TEST(Timeline, WhileMessagesOnlyTravelTheLinkServesOthersIfTheyMayBeInFlight) {
  // Each is on the link for 160 us and then 1000 us on its way.
  const core::GradientTable table = table_of({{160, 0}, {160, 0}, {160, 0}});
  CostTable cost = simple_table();
  cost.collectives[0].message_us = cost.collectives[0].wait_us = 500;  // of two messages
  const auto ends = [&](int in_flight) {
    std::vector<Span> spans;
    const double end_us = timeline_of(table, apart(table, "all_reduce", in_flight), cost).run(spans);
    std::vector<double> all;
    for (const Span& span : spans) {
      if (span.server != Server::link) continue;
      EXPECT_NEAR(span.end_us - span.begin_us, 1160, 1e-9);
      all.push_back(span.end_us);
    }
    EXPECT_EQ(end_us, all.back());
    return all;
  };
  EXPECT_THAT(ends(3), ElementsAre(1160, 1320, 1480));
  EXPECT_THAT(ends(2), ElementsAre(1160, 1320, 2320));
  EXPECT_THAT(ends(1), ElementsAre(1160, 2320, 3480));
}

TEST(Timeline, ARateThatIsMissingIsNamed) {
  const core::GradientTable table = table_of({{160, 0}});
  const auto timeline =
      Timeline::make(table, apart(table, "reduce broadcast", 1), simple_table(), testing::known_traits());
  EXPECT_THAT(timeline.error().message,
              HasSubstr("program \"reduce broadcast\": the cost table has no rate for step 0"));
}

// Programs of one exchange that are decoded on the host run as Lanes model them: one visit of each lane in order.
TEST(Timeline, AgreesWithTheLanesThatPlannersUse) {
  core::Rng rng(3);
  CostTable cost = simple_table();
  cost.collectives[1].byte_us = 0.1;
  for (int job = 0; job < 200; ++job) {
    std::vector<std::pair<int64_t, double>> tensors;
    double ready_us = 0;
    for (uint64_t t = 0, size = 1 + rng.below(20); t < size; ++t) {
      tensors.push_back({static_cast<int64_t>(16 * (1 + rng.below(200))), ready_us});
      ready_us += static_cast<double>(rng.below(1000));
    }
    const core::GradientTable table = table_of(tensors);
    const core::Option plain = core::plain_all_reduce();
    const auto gather =
        core::parse_option("bf16: encode@device all_gather decode@host", testing::known_traits()).value();
    core::Strategy strategy = apart(table, "all_reduce", 1000);
    for (core::Bucket& bucket : strategy.buckets) {
      if (rng.below(2) == 0) bucket.option = gather;
    }
    strategy.order = core::staggered_order(strategy.buckets);
    const auto model = make_program_cost(cost, {gather}, testing::known_traits(), 1 << 12).value();
    ASSERT_EQ(model->options().size(), 2u);
    EXPECT_NEAR(timeline_of(table, strategy, cost).run(), replay_us(*model, table, strategy), 1e-6) << "job " << job;
  }
}

TEST(Timeline, EveryProgramOfTheTreeEndsAndAllItsOperationsAreDoneOnce) {
  constexpr Place kBoth[] = {Place::device, Place::host};
  CostTable cost{.ranks = {.size = 4, .local_size = 2}, .scale_us = 1};
  for (const Kind kind : {Kind::all_reduce, Kind::reduce_scatter, Kind::all_gather, Kind::all_to_all, Kind::reduce,
                          Kind::broadcast, Kind::gather}) {
    for (const Level level : {Level::flat, Level::intra, Level::inter})
      cost.collectives.push_back({kind, level, 3, 0.01});
  }
  for (const Place place : kBoth) cost.codecs.push_back({kBf16, place, 1, 0.001, 1, 0.002, 0});
  const core::GradientTable table = table_of({{1600, 0}, {3200, 20}, {160, 45}});
  std::vector<Steps> programs = flat_programs(kBoth);
  for (Steps& steps : hierarchical_programs(kBoth)) programs.push_back(std::move(steps));
  std::vector<Span> spans;
  for (const Steps& steps : programs) {
    core::Strategy strategy = apart(table, "all_reduce", 3);
    for (core::Bucket& bucket : strategy.buckets) bucket.option = with_codecs(steps, kBf16, kBf16);
    strategy.order = core::staggered_order(strategy.buckets);
    Timeline timeline = timeline_of(table, strategy, cost);
    const double end_us = timeline.run(spans);
    EXPECT_EQ(spans.size(), timeline.operations() + table.tensors.size()) << to_string(strategy.buckets[0].option);
    EXPECT_EQ(spans.back().end_us, end_us);
    EXPECT_EQ(timeline.run(), end_us) << "a second step is like the first";
  }
}

// --- the next forward pass -------------------------------------------------------------------------------------------

// Forward first reads the tensor that is ready last, after 10 us, and the other one after 50 of 80. An update takes
// a hundredth of an us for each element. On the link the buckets take 160 and 320 us.
core::GradientTable forward_table() {
  core::GradientTable table = table_of({{160, 0}, {320, 100}});
  table.tensors[0].read_us = 50;
  table.tensors[1].read_us = 10;
  table.forward_us = 80;
  table.update_element_us = 0.01;
  return table;
}

double end_us(const core::GradientTable& table, core::Strategy strategy, std::vector<core::Due> due) {
  for (size_t b = 0; b < due.size(); ++b) strategy.buckets[b].due = due[b];
  Timeline timeline = timeline_of(table, strategy, simple_table());
  std::vector<Span> spans;
  const double us = timeline.run();
  EXPECT_EQ(timeline.run(spans), us);
  EXPECT_EQ(timeline.run(), us) << "a run leaves nothing behind";
  return us;
}

constexpr auto kNow = core::Due::backward, kLate = core::Due::forward;

TEST(Timeline, WithoutLateBucketsForwardAndUpdatesFollowTheRest) {
  const core::GradientTable table = forward_table();
  const core::Strategy strategy = apart(table, "all_reduce", 1);
  EXPECT_DOUBLE_EQ(end_us(table, strategy, {kNow, kNow}), 480 + 4.8 + 80);
  core::GradientTable unmeasured = table;
  unmeasured.forward_us = unmeasured.update_element_us = 0;
  EXPECT_DOUBLE_EQ(end_us(unmeasured, strategy, {kNow, kNow}), 480);
}

TEST(Timeline, ForwardWaitsForALateBucketAtItsFirstRead) {
  const core::GradientTable table = forward_table();
  core::Strategy strategy = apart(table, "all_reduce", 1);
  // Backward returns at 100. Forward runs until 110, bucket 1 arrives at 480; then an update, 40 us of forward, an
  // update, 30.
  EXPECT_DOUBLE_EQ(end_us(table, strategy, {kLate, kLate}), 480 + 3.2 + 40 + 1.6 + 30);
  // The other order: bucket 1 from 100 to 420, bucket 0 until 580, long after forward needs it.
  strategy.order = {{1, 0}, {0, 0}};
  EXPECT_DOUBLE_EQ(end_us(table, strategy, {kLate, kLate}), 580 + 1.6 + 30);
  // Only the last one is late: bucket 0 arrives at 160 and is updated, and forward runs until 171.6.
  strategy.order = {{0, 0}, {1, 0}};
  EXPECT_DOUBLE_EQ(end_us(table, strategy, {kNow, kLate}), 480 + 3.2 + 70);
  // Only the first one is late: backward returns at 480, and then nothing waits.
  EXPECT_DOUBLE_EQ(end_us(table, strategy, {kLate, kNow}), 480 + 3.2 + 50 + 1.6 + 30);
}

TEST(Timeline, WithoutAReaderABucketIsDueWhenBackwardReturns) {
  core::GradientTable table = forward_table();
  table.tensors[1].read_us = -1;
  EXPECT_DOUBLE_EQ(end_us(table, apart(table, "all_reduce", 1), {kNow, kLate}), 480 + 4.8 + 80);
}

TEST(Timeline, WhatWaitsForItsThreadForwardDoesWhileItWaits) {
  core::GradientTable table = table_of({{160, 0}});
  table.tensors[0].read_us = 10;
  table.forward_us = 30;
  core::Strategy strategy = apart(table, "bf16: encode@device all_gather decode@device", 2);
  strategy.buckets[0].due = kLate;
  std::vector<Span> spans;
  // Encoded until 16; forward until 26; gathered until 176, decoded until 208, and 20 us of forward are left.
  EXPECT_DOUBLE_EQ(timeline_of(table, strategy, simple_table()).run(spans), 228);
  std::vector<std::tuple<int32_t, Phase, double, double>> device;
  for (const Span& span : spans) {
    if (span.server == Server::device) device.emplace_back(span.bucket, span.phase, span.begin_us, span.end_us);
  }
  EXPECT_THAT(device, ElementsAre(std::tuple(-1, Phase::backward, 0, 0), std::tuple(0, Phase::backward, 0, 16),
                                  std::tuple(-1, Phase::forward, 16, 26), std::tuple(0, Phase::backward, 176, 208),
                                  std::tuple(-1, Phase::forward, 208, 228)));
}

TEST(Timeline, ATensorInSeveralBucketsWaitsForAllThatAreLate) {
  core::GradientTable table = table_of({{320, 0}});
  table.tensors[0].read_us = 0;
  table.forward_us = 100;
  table.update_element_us = 0.1;
  core::Strategy strategy = core::uniform({{{0, 0, 160}}, {{0, 160, 160}}}, core::plain_all_reduce(), 1);
  EXPECT_DOUBLE_EQ(end_us(table, strategy, {kLate, kLate}), 320 + 32 + 100);
  strategy.order = {{1, 0}, {0, 0}};
  EXPECT_DOUBLE_EQ(end_us(table, strategy, {kNow, kLate}), 320 + 32 + 100);
}

}  // namespace
}  // namespace gradtune::policies
