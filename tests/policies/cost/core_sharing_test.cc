// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/cost/core_sharing.h"

#include <gtest/gtest.h>

#include "engine/core/rng.h"
#include "policies/cost/cost_fit.h"
#include "policies/cost/timeline.h"
#include "tests/policies/jobs.h"

namespace gradtune::policies {
namespace {

using core::Level;
using core::Place;
using Kind = core::Step::Kind;

constexpr std::array<bool, kWorkers> kNone{}, kAll{true, true, true, true, true};
constexpr std::array<bool, kWorkers> kHostBesideBackward{true, false, true, false, false};

TEST(Cores, NobodyIsSlowAlone) {
  for (const Cores& cores : {Cores{}, Cores{0.25, 0.25, 1}, Cores{1, 1, 4}, Cores{8, 8, 16}}) {
    EXPECT_EQ(speed(cores, kNone), 1);
    for (size_t worker = 0; worker < kWorkers; ++worker) {
      std::array<bool, kWorkers> one{};
      one[worker] = true;
      EXPECT_EQ(speed(cores, one), 1);
    }
  }
}

TEST(Cores, WhereThereAreTooFewAllGoOnAsSlowly) {
  EXPECT_EQ(speed({1, 1, 1}, kHostBesideBackward), 0.5);
  EXPECT_EQ(speed({1, 1, 1}, kAll), 0.2);
  EXPECT_EQ(speed({2, 1, 1}, kHostBesideBackward), 1);
  EXPECT_EQ(speed({4, 4, 2}, kHostBesideBackward), 4.0 / 6);
  EXPECT_EQ(speed({1, 0, 1}, kHostBesideBackward), 1) << "a GPU computes";
  EXPECT_EQ(speed({1, 0, 1}, {true, true, true, false, false}), 1) << "and does what is placed on it";
  EXPECT_EQ(speed({0.5, 0, 1}, {false, false, true, true, false}), 0.5)
      << "what ranks take from each other is in the rates";
  EXPECT_EQ(speed({1, 1, 1, 0.25}, {true, false, false, false, false, true}), 0.8) << "beside bytes on the network";
  EXPECT_EQ(speed({2, 1, 1, 0.25}, {true, false, false, false, false, true}), 1);
  EXPECT_EQ(speed({0, 1, 1}, kAll), 1) << "not known";
}

TEST(WorkClock, GoesOnAsFastAsWhoIsAtWork) {
  const WorkClock clock({1, 1, 1}, {{Worker::host, 10, 30}, {Worker::device, 20, 40}, {Worker::device, 50, 50}});
  EXPECT_EQ(clock.at(-5), -5);
  EXPECT_EQ(clock.at(10), 10);
  EXPECT_EQ(clock.at(20), 20);
  EXPECT_EQ(clock.at(26), 23);
  EXPECT_EQ(clock.at(30), 25);
  EXPECT_EQ(clock.at(45), 40);
}

TEST(WorkClock, TwoOfOneKindNeedNoMoreThanOne) {
  const WorkClock clock({1, 0, 1}, {{Worker::link_intra, 0, 20}, {Worker::link_intra, 10, 30}});
  EXPECT_EQ(clock.at(30), 30);
}

// Rates are fitted to the timeline of ranks that are short of cores; they must be those of ranks that are not.
TEST(WorkClock, FindsWhatAnEncodeTakesThatHasTheCoresForItself) {
  const CostTable truth{.ranks = {.size = 4, .local_size = 2},
                        .cores = {1, 1, 1},
                        .collectives = {{Kind::all_reduce, Level::flat, 10, 0.02},
                                        {Kind::reduce_scatter, Level::intra, 10, 0.01},
                                        {Kind::all_gather, Level::intra, 10, 0.01},
                                        {Kind::all_gather, Level::inter, 10, 0.02}},
                        .codecs = {{{"bf16"}, Place::host, 5, 0.02, 5, 0.02, 0.005},
                                   {{"bf16"}, Place::device, 5, 0.01, 5, 0.01, 0.0025}}};
  const auto option_of = [](const char* text) { return core::parse_option(text, testing::known_traits()).value(); };
  const core::Option options[] = {
      option_of("bf16: reduce_scatter@intra encode@host all_gather@inter decode@host all_gather@intra"),
      option_of("bf16: encode@device all_reduce decode@device"), option_of("bf16: encode@host all_reduce decode@host")};
  core::GradientTable table;
  for (int t = 0; t < 12; ++t) {
    table.tensors.push_back(
        {.name = std::to_string(t), .shape = {4000 * (1 + t % 5)}, .numel = 4000 * (1 + t % 5), .ready_us = 250.0 * t});
  }
  core::Strategy strategy{.buckets = {}, .order = {}, .in_flight = 4};
  for (int32_t t = 0; t < 12; ++t) {
    strategy.buckets.push_back({{{t, 0, table.tensors[static_cast<size_t>(t)].numel}}, options[t % 3]});
  }
  core::set_default_flow(strategy);
  std::vector<Span> spans;
  Timeline::make(table, strategy, truth, testing::known_traits()).value().run(spans);
  TimedRun timed{.strategy = strategy, .steps = {}};
  for (const Span& span : spans) {
    if (span.bucket >= 0) timed.steps.push_back({span.bucket, span.step, span.begin_us, span.end_us});
  }
  const auto fitted = [&](const Cores& cores) {
    return fit_cost(std::span(&timed, 1), table, truth.ranks, testing::known_traits(), {}, {.cores = cores}).table;
  };
  const CostTable found = fitted(truth.cores), unaware = fitted({});
  const auto encode_us = [](const CostTable& cost) {
    const CodecRate* const rate = find_rate(cost, {"bf16"}, Place::host);
    return rate->encode_us + 12'000 * rate->encode_element_us;
  };
  EXPECT_NEAR(encode_us(found), encode_us(truth), 0.03 * encode_us(truth));
  EXPECT_GT(encode_us(unaware), 1.2 * encode_us(truth)) << "the job is one where it matters";
}

}  // namespace
}  // namespace gradtune::policies
