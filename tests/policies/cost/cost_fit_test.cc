// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/cost/cost_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "policies/cost/program_cost.h"
#include "policies/space/admission.h"
#include "tests/policies/jobs.h"

namespace gradtune::policies {
namespace {

using core::Level;
using core::Place;
using Kind = core::Step::Kind;

core::Option option_of(const char* text) { return core::parse_option(text, testing::known_traits()).value(); }

const core::GradientTable kOneTensor{{{.name = "all", .shape = {1'000'000}, .numel = 1'000'000}}};

// The durations of a table, one operation after the other.
TimedRun timed_by(const CostTable& table, const core::Strategy& strategy) {
  TimedRun timed{.strategy = strategy, .steps = {}};
  double now = 0;
  for (size_t b = 0; b < strategy.buckets.size(); ++b) {
    const core::Option& option = strategy.buckets[b].option;
    const std::vector<OpSize> sizes =
        op_sizes(option, core::numel(strategy.buckets[b]), table.ranks, testing::known_traits());
    for (size_t s = 0; s < option.steps.size(); ++s) {
      const core::Step& step = option.steps[s];
      const auto elements = static_cast<double>(sizes[s].elements), bytes = static_cast<double>(sizes[s].bytes);
      double us = 0;
      if (core::is_collective(step.kind)) {
        const CollectiveRate& rate = table.collectives[step.level == Level::inter ? 1 : 0];
        const int group = table.ranks.of(step.level);
        us = core::messages(step.kind, group) * rate.message_us +
             static_cast<double>(core::link_bytes(step.kind, sizes[s].bytes, group)) * rate.byte_us;
      } else if (step.kind == Kind::encode) {
        us = table.codecs[0].encode_us + elements * table.codecs[0].encode_element_us;
      } else {
        us = table.codecs[0].decode_us + elements * table.codecs[0].decode_element_us +
             bytes * table.codecs[0].decode_byte_us;
      }
      timed.steps.push_back({static_cast<int32_t>(b), static_cast<int32_t>(s), now, now + us});
      now += us;
    }
  }
  return timed;
}

core::Strategy strategy_of(const char* option, std::initializer_list<int64_t> sizes) {
  core::Strategy strategy;
  for (const int64_t size : sizes) strategy.buckets.push_back({{{0, 0, size}}, option_of(option)});
  return strategy;
}

TEST(FitCost, GivesBackTheRatesThatMadeTheTimes) {
  const CostTable table{
      .ranks = {.size = 8, .local_size = 2},
      .collectives = {{Kind::all_reduce, Level::flat, 40, 0.008}, {Kind::all_gather, Level::inter, 70, 0.01}},
      .codecs = {{{"bf16"}, Place::device, 4, 3e-4, 6, 4e-4, 1e-4}}};
  const core::Strategy plain = strategy_of("all_reduce", {1000, 50'000, 200'000, 400'000});
  const core::Strategy gather =
      strategy_of("bf16: encode@device all_gather@inter decode@device", {1600, 16'000, 160'000});
  const std::vector<TimedRun> timed{timed_by(table, plain), timed_by(table, gather)};
  const FittedCost fitted = fit_cost(timed, kOneTensor, table.ranks, testing::known_traits());
  ASSERT_EQ(fitted.table.collectives.size(), 2u);
  for (size_t c = 0; c < 2; ++c) {
    EXPECT_EQ(fitted.table.collectives[c].kind, table.collectives[c].kind);
    EXPECT_EQ(fitted.table.collectives[c].level, table.collectives[c].level);
    EXPECT_NEAR(fitted.table.collectives[c].message_us, table.collectives[c].message_us, 1e-6);
    EXPECT_NEAR(fitted.table.collectives[c].byte_us, table.collectives[c].byte_us, 1e-9);
    EXPECT_NEAR(fitted.collectives[c].error, 0, 1e-9);
  }
  ASSERT_EQ(fitted.table.codecs.size(), 1u);
  const CodecRate& codec = fitted.table.codecs[0];
  EXPECT_NEAR(codec.encode_us, 4, 1e-6);
  EXPECT_NEAR(codec.encode_element_us, 3e-4, 1e-9);
  EXPECT_NEAR(codec.decode_us, 6, 1e-6);
  EXPECT_NEAR(codec.decode_element_us, 4e-4, 1e-9);
  EXPECT_NEAR(codec.decode_byte_us, 1e-4, 1e-9);
  EXPECT_EQ(fitted.codecs[0].samples, 6);
}

TEST(FitCost, CollectivesThatAreUnderWayTogetherShareTheLinkHoweverItDividesItself) {
  // 0.25 us an element: 250 and 500 alone, 750 together. The small one goes first, or last, or both at half speed.
  const core::Strategy plain = strategy_of("all_reduce", {1000, 2000});
  for (const auto& [small_us, large_us] : {std::pair(250, 750), std::pair(750, 500), std::pair(500, 750)}) {
    const TimedRun timed{plain, {{0, 0, 0, 1.0 * small_us}, {1, 0, 0, 1.0 * large_us}}};
    const FittedCost fitted = fit_cost(std::span(&timed, 1), kOneTensor, {.size = 2}, testing::known_traits());
    ASSERT_EQ(fitted.table.collectives.size(), 1u);
    EXPECT_NEAR(fitted.table.collectives[0].byte_us, 0.25 / 4, 1e-9);
    EXPECT_NEAR(fitted.table.collectives[0].message_us, 0, 1e-9);
  }
}

TEST(FitCost, KindsThatAreUnderWayTogetherAreToldApartByWhatTheyTakeAlone) {
  // A byte of all_reduce takes 0.01 us, one of all_gather twice that; they share the link about as often as not.
  const core::Strategy both{
      .buckets = {strategy_of("all_reduce", {100'000}).buckets[0],
                  strategy_of("bf16: encode@device all_gather decode@device", {200'000}).buckets[0]},
      .order = {}};
  std::vector<TimedRun> timed;
  for (int step = 0; step < 4; ++step) timed.push_back({both, {{0, 0, 0, 6000}, {1, 1, 0, 12'000}}});
  for (int step = 0; step < 5; ++step) timed.push_back({both, {{0, 0, 0, 4000}, {1, 1, 4000, 12'000}}});
  const FittedCost fitted = fit_cost(timed, kOneTensor, {.size = 2}, testing::known_traits());
  EXPECT_NEAR(find_rate(fitted.table, Kind::all_reduce, Level::flat)->byte_us, 0.01, 5e-4);
  EXPECT_NEAR(find_rate(fitted.table, Kind::all_gather, Level::flat)->byte_us, 0.02, 1e-3);
}

TEST(FitCost, WhatIsSeenAlongADimensionIsItsOwnAndNotThatOfAllRanks) {
  const CostTable truth{.ranks = {.size = 4},
                        .collectives = {{Kind::all_gather, Level::flat, 40, 0.008}},
                        .codecs = {{{"bf16"}, Place::device, 4, 3e-4, 6, 4e-4, 1e-4}}};
  CostTable prior = truth;
  prior.collectives[0] = {Kind::all_gather, Level::flat, 90, 0.02};
  const auto option = to_string(core::recursive_doubling({"bf16"}, Place::device, 4));
  const std::vector<TimedRun> timed{timed_by(truth, strategy_of(option.c_str(), {1600, 16'000, 160'000, 800'000}))};
  const FittedCost fitted = fit_cost(timed, kOneTensor, truth.ranks, testing::known_traits(), prior);
  for (const int d : {0, 1}) {
    const CollectiveRate* rate = find_rate(fitted.table, Kind::all_gather, core::dimension(d));
    EXPECT_EQ(rate->level, core::dimension(d));
    EXPECT_NEAR(rate->message_us, 40, 20);
    EXPECT_NEAR(rate->byte_us, 0.008, 0.0008);
  }
  EXPECT_NEAR(find_rate(fitted.table, Kind::all_gather, Level::flat)->byte_us, 0.02, 1e-6);
  EXPECT_EQ(find_rate(prior, Kind::all_gather, core::dimension(1)), &prior.collectives[0]);
  EXPECT_EQ(find_rate(prior, Kind::all_reduce, core::dimension(1)), nullptr);
}

TEST(FitCost, WhatWasNotSeenIsThePriors) {
  const CostTable seen{.ranks = {.size = 8},
                       .collectives = {{Kind::all_reduce, Level::flat, 20, 0.008}},
                       .codecs = {{{"bf16"}, Place::device, 4, 3e-4, 6, 4e-4, 1e-4}}};
  const core::CompressorSpec topk{"topk", 0.01};
  const auto prior = prior_cost(seen, {{"bf16"}, topk});
  ASSERT_TRUE(prior);
  const core::Strategy plain = strategy_of("all_reduce", {1000, 50'000, 200'000}),
                       encode = strategy_of("bf16: encode@device all_reduce decode@device", {1600, 16'000, 160'000});
  TimedRun half = timed_by(seen, encode);
  std::erase_if(half.steps, [](const TimedOp& step) { return step.step == 2; });
  const std::vector<TimedRun> timed{timed_by(seen, plain), half};
  const FittedCost fitted = fit_cost(timed, kOneTensor, seen.ranks, testing::known_traits(), *prior);
  for (const Kind kind : {Kind::all_reduce, Kind::reduce_scatter, Kind::all_gather, Kind::all_to_all}) {
    const CollectiveRate* rate = find_rate(fitted.table, kind, Level::flat);
    ASSERT_NE(rate, nullptr);
    EXPECT_NEAR(rate->message_us, 20, 1e-6);
    EXPECT_NEAR(rate->byte_us, 0.008, 1e-9);
    const auto row = static_cast<size_t>(rate - fitted.table.collectives.data());
    EXPECT_EQ(fitted.collectives[row].samples, kind == Kind::all_reduce ? 6 : 0);
  }
  const CodecRate *bf16 = find_rate(fitted.table, {"bf16"}, Place::device),
                  *expected = find_rate(*prior, {"bf16"}, Place::device);
  EXPECT_NEAR(bf16->encode_element_us, 3e-4, 1e-9);
  EXPECT_EQ(bf16->decode_element_us, expected->decode_element_us);
  EXPECT_EQ(*find_rate(fitted.table, topk, Place::host), *find_rate(*prior, topk, Place::host));
  // Without a prior, half of a compressor has no rate.
  EXPECT_EQ(find_rate(fit_cost(timed, kOneTensor, seen.ranks, testing::known_traits()).table, {"bf16"}, Place::device),
            nullptr);
}

TEST(FitCost, MessagesThatWereNotSeenTakeWhatTheyDidOverIdleLinks) {
  const CostTable seen{.ranks = {.size = 8, .local_size = 2},
                       .collectives = {{Kind::all_reduce, Level::flat, 0, 0.008}}};
  const IdleLinks idle_links{.flat = {500, 350}, .inter = {400, 300}, .intra = {50, 10, 0.002}};
  const auto prior = prior_cost(seen, {}, idle_links);
  ASSERT_TRUE(prior);
  for (const auto& [level, latency] :
       {std::pair(Level::flat, idle_links.flat), std::pair(Level::inter, idle_links.inter)}) {
    for (const Kind kind : {Kind::all_reduce, Kind::all_gather, Kind::all_to_all, Kind::reduce_scatter}) {
      EXPECT_EQ(find_rate(*prior, kind, level)->message_us, latency.message_us);
      EXPECT_EQ(find_rate(*prior, kind, level)->wait_us, latency.wait_us);
    }
  }
  EXPECT_EQ(find_rate(*prior, Kind::broadcast, Level::intra)->message_us, 50);
  EXPECT_EQ(find_rate(*prior, Kind::broadcast, Level::intra)->byte_us, 0.002);
  EXPECT_EQ(find_rate(*prior, Kind::all_gather, Level::inter)->byte_us, 0.008);
  // On a long link bytes of sums wait for each other, and now others may share the link.
  const CostTable fast = prior_cost(seen, {}, {.flat = {500, 350, 0.006}, .inter = {400, 300, 0.01}}).value();
  EXPECT_EQ(find_rate(fast, Kind::all_gather, Level::flat)->byte_us, 0.006);
  EXPECT_EQ(find_rate(fast, Kind::all_gather, Level::inter)->byte_us, 0.008);
}

// Sums take 12 ns a byte. Gathers, which were not seen yet, take 8, the rate of an idle link.
TEST(FitCost, WhatWasNotSeenMayBeFasterThanSums) {
  const core::Strategy plain = strategy_of("all_reduce", {250'000, 4'000'000});
  const std::vector<TimedRun> timed(3, {plain, {{0, 0, 0, 32'000}, {1, 0, 40'000, 252'000}}});
  const auto fit = [&](const CostTable& prior) {
    return fit_cost(timed, kOneTensor, {.size = 2}, testing::known_traits(), prior).table;
  };
  const CostTable fitted = fit(prior_cost(fit({}), {}, {.flat = {10'000, 9900, 0.008}}).value());
  EXPECT_NEAR(find_rate(fitted, Kind::all_reduce, Level::flat)->byte_us, 0.012, 0.0005);
  EXPECT_EQ(find_rate(fitted, Kind::all_gather, Level::flat)->byte_us, 0.008);
}

// Large messages, one at a time, do not show the time of a short one, nor that of several short ones together.
TEST(FitCost, WhereOnlyLargeMessagesWereSeenIdleLinksTell) {
  const CostTable truth{.ranks = {.size = 4}, .collectives = {{Kind::all_reduce, Level::flat, 10'000, 0.04, 9000}}};
  const core::Strategy plain = strategy_of("all_reduce", {2'000'000, 1'900'000});
  const std::vector<TimedRun> timed(4, timed_by(truth, plain));
  const auto fit = [&](const IdleLinks& idle_links) {
    const auto without = fit_cost(timed, kOneTensor, truth.ranks, testing::known_traits());
    const auto prior = prior_cost(without.table, {}, idle_links);
    return fit_cost(timed, kOneTensor, truth.ranks, testing::known_traits(), *prior).table;
  };
  const CostTable known = fit({.flat = {10'000, 9000}}), unknown = fit({});
  EXPECT_NEAR(find_rate(known, Kind::all_gather, Level::flat)->message_us, 10'000, 100);
  EXPECT_NEAR(find_rate(known, Kind::all_gather, Level::flat)->wait_us, 9000, 100);
  EXPECT_LT(find_rate(unknown, Kind::all_gather, Level::flat)->message_us, 100);
}

TEST(FitCost, EachCollectiveThatAJobPlansWithHasAPrior) {
  CostTable seen{.ranks = {.size = 4, .local_size = 2}};
  seen.collectives = {{Kind::all_reduce, Level::flat, 100, 0.01}};
  const CostTable prior = prior_cost(seen, {{"bf16"}}).value();
  for (const core::StepTraits& kind : core::step_table()) {
    const bool has_no_root = kind.root == core::StepTraits::Root::none;
    for (const Level level : {Level::flat, Level::inter, Level::intra}) {
      const bool is_planned = kind.is_collective && (level == Level::intra ? kind.takes_gradients : has_no_root);
      EXPECT_EQ(find_rate(prior, kind.kind, level) != nullptr, is_planned)
          << kind.name << " " << core::to_string(level);
    }
  }
  // Programs without a rate are left out silently, so the admitted ones are counted: those with levels all have
  // theirs.
  Knowledge job = testing::knowledge_of(testing::reference_table(), 4, core::Fidelity::half);
  job.ranks.local_size = 2;
  for (const core::Option& option : admitted_options(job)) {
    const bool is_rooted_outside = std::ranges::any_of(option.steps, [](const core::Step& step) {
      return core::traits_of(step.kind).root != core::StepTraits::Root::none && step.level != Level::intra;
    });
    const bool uses_none = std::ranges::find(option.codecs, core::CompressorSpec{"none"}) != option.codecs.end();
    if (is_rooted_outside || uses_none) continue;
    const auto costs = program_op_costs(prior, option, 1000, testing::known_traits());
    EXPECT_TRUE(costs.ok()) << costs.error().message;
  }
}

TEST(FitCost, WithoutAnythingSeenThereIsNoPrior) {
  EXPECT_FALSE(prior_cost({.ranks = {.size = 2}}, {{"bf16"}}));
  EXPECT_FALSE(prior_cost(
      {.ranks = {.size = 4, .local_size = 2}, .collectives = {{Kind::all_reduce, Level::inter, 20, 0.008}}}, {}));
}

TEST(FitCost, WhereNothingWasSummedOtherCollectivesTellOfTheLink) {
  const CostTable seen{.ranks = {.size = 8}, .collectives = {{Kind::all_gather, Level::flat, 20, 0.008}}};
  const auto prior = prior_cost(seen, {});
  ASSERT_TRUE(prior);
  for (const Kind kind : {Kind::all_reduce, Kind::all_gather, Kind::all_to_all}) {
    EXPECT_EQ(find_rate(*prior, kind, Level::flat)->message_us, 20);
    EXPECT_EQ(find_rate(*prior, kind, Level::flat)->byte_us, 0.008);
  }
}

TEST(FitCost, MoreSamplesAndLessNoiseMakeItSurer) {
  EXPECT_GT((RateQuality{4, 0.1}).standard_error(), (RateQuality{16, 0.1}).standard_error());
  EXPECT_GT((RateQuality{4, 0.1}).standard_error(), (RateQuality{4, 0.05}).standard_error());
  FittedCost fitted{.table = {.collectives = {{Kind::all_reduce, Level::flat, 100, 1}}},
                    .collectives = {{.samples = 25, .error = 0.1}},
                    .codecs = {}};
  const double error = fitted.collectives[0].standard_error();
  EXPECT_NEAR(shifted(fitted, 1).collectives[0].byte_us, 1 + error, 1e-12);
  EXPECT_NEAR(shifted(fitted, -1).collectives[0].message_us, 100 * (1 - error), 1e-12);
  EXPECT_NEAR(shifted(fitted, -100).collectives[0].byte_us, 0.5, 1e-12);
}

TEST(FitCost, WhatWaitsBehindALargerOneDoesNotCount) {
  core::Strategy strategy = strategy_of("all_reduce", {100'000});
  strategy.buckets.push_back(strategy_of("bf16: encode@device all_gather decode@device", {1000}).buckets[0]);
  const TimedRun timed{strategy, {{0, 0, 0, 100'000}, {1, 1, 10'000, 90'000}}};
  const auto fit = [&](const CostTable& prior) {
    return fit_cost(std::span(&timed, 1), kOneTensor, {.size = 2}, testing::known_traits(), prior);
  };
  const auto prior = prior_cost(fit({}).table, {{"bf16"}});
  ASSERT_TRUE(prior);
  const FittedCost fitted = fit(*prior);
  EXPECT_EQ(*find_rate(fitted.table, Kind::all_gather, Level::flat), *find_rate(*prior, Kind::all_gather, Level::flat));
}

TEST(FitCost, ALinkIsWhatItIsWhateverTravels) {
  // Times of all_gather that do not grow with the size: a byte still has a cost.
  const core::Strategy plain = strategy_of("all_reduce", {100'000}),
                       gather = strategy_of("bf16: encode@device all_gather decode@device", {1000, 50'000});
  const std::vector<TimedRun> timed{{plain, {{0, 0, 0, 4000}}}, {gather, {{0, 1, 0, 900}, {1, 1, 1000, 1900}}}};
  const auto fit = [&](const CostTable& prior) {
    return fit_cost(timed, kOneTensor, {.size = 2}, testing::known_traits(), prior);
  };
  const FittedCost fitted = fit(prior_cost(fit({}).table, {}).value());
  EXPECT_NEAR(find_rate(fitted.table, Kind::all_reduce, Level::flat)->byte_us, 0.01, 0.001);
  EXPECT_GE(find_rate(fitted.table, Kind::all_gather, Level::flat)->byte_us, 0.0075);
}

TEST(FitCost, NothingIsFasterThanALongPeriodOfItsLink) {
  // Gathers of many sizes that do not grow, as when a token bucket passes that much at once.
  const core::Strategy plain = strategy_of("all_reduce", {1'000'000});
  core::Strategy gather = strategy_of("bf16: encode@device all_gather decode@device", {});
  TimedRun gathered{gather, {}};
  for (int32_t b = 0; b < 40; ++b) {
    const int64_t size = 500 * (b + 1);
    gathered.strategy.buckets.push_back(strategy_of("bf16: encode@device all_gather decode@device", {size}).buckets[0]);
    gathered.steps.push_back({b, 1, 1000.0 * b, 1000.0 * b + 100});
  }
  const std::vector<TimedRun> timed{{plain, {{0, 0, 0, 40'000}}}, gathered};
  const auto fit = [&](const CostTable& prior) {
    return fit_cost(timed, kOneTensor, {.size = 2}, testing::known_traits(), prior);
  };
  const FittedCost fitted = fit(prior_cost(fit({}).table, {}).value());
  EXPECT_GE(find_rate(fitted.table, Kind::all_gather, Level::flat)->byte_us, 0.0089);
}

TEST(FitCost, ALinkIsAsFarForWhatWasNotSeen) {
  // Short gathers take 5 ms; for all_reduce only a large one was seen, for the others none.
  const core::Strategy plain = strategy_of("all_reduce", {1'000'000}),
                       gather = strategy_of("bf16: encode@device all_gather decode@device", {100, 1000});
  std::vector<TimedRun> timed;
  for (int step = 0; step < 3; ++step) {
    timed.push_back({plain, {{0, 0, 0, 50'000}}});
    timed.push_back({gather, {{0, 1, 0, 5000}, {1, 1, 9000, 14'010}}});
  }
  const auto fit = [&](const CostTable& prior) {
    return fit_cost(timed, kOneTensor, {.size = 2}, testing::known_traits(), prior);
  };
  const FittedCost fitted = fit(prior_cost(fit({}).table, {}).value());
  EXPECT_NEAR(find_rate(fitted.table, Kind::all_reduce, Level::flat)->message_us, 5000, 100);
  EXPECT_NEAR(find_rate(fitted.table, Kind::all_to_all, Level::flat)->message_us, 5000, 100);
}

TEST(FitCost, ALinkIsAsFarForExchangesOfPairsAsForRings) {
  // Eight ranks, 5 ms from one to the next: a short gather takes seven of them, an exchange of pairs would take one.
  const core::Strategy plain = strategy_of("all_reduce", {1'000'000}),
                       gather = strategy_of("bf16: encode@device all_gather decode@device", {100, 1000});
  std::vector<TimedRun> timed;
  for (int step = 0; step < 3; ++step) {
    timed.push_back({plain, {{0, 0, 0, 140'000}}});
    timed.push_back({gather, {{0, 1, 0, 35'000}, {1, 1, 50'000, 85'070}}});
  }
  const auto fit = [&](const CostTable& prior) {
    return fit_cost(timed, kOneTensor, {.size = 8}, testing::known_traits(), prior).table;
  };
  const CostTable fitted = fit(prior_cost(fit({}), {}).value());
  const core::Option both =
      option_of("bf16: encode@device all_to_all decode@device encode@device all_gather decode@device");
  CostTable with_codec = fitted;
  with_codec.codecs = {{{"bf16"}, Place::device}};
  const auto times = program_op_costs(with_codec, both, 800, testing::known_traits());
  ASSERT_TRUE(times.ok()) << times.error().message;
  EXPECT_NEAR(times.value()[1].us(), 5000, 250);
  EXPECT_NEAR(times.value()[4].us(), 35'000, 500);
}

TEST(FitCost, ShortExchangesOfPairsTellWhatOneMessageTakes) {
  // The same link, after exchanges of pairs were seen: it is not seven times as fast for a ring.
  const core::Strategy plain = strategy_of("all_reduce", {1'000'000}),
                       pairs = strategy_of(
                           "bf16: encode@device all_to_all decode@device encode@device all_gather decode@device",
                           {100, 1000});
  std::vector<TimedRun> timed;
  for (int step = 0; step < 3; ++step) {
    timed.push_back({plain, {{0, 0, 0, 140'000}}});
    timed.push_back({pairs, {{0, 1, 0, 5000}, {1, 1, 50'000, 55'010}}});
  }
  const auto fit = [&](const CostTable& prior) {
    return fit_cost(timed, kOneTensor, {.size = 8}, testing::known_traits(), prior).table;
  };
  CostTable fitted = fit(prior_cost(fit({}), {}).value());
  fitted.codecs = {{{"bf16"}, Place::device}};
  const auto times = program_op_costs(
      fitted, option_of("bf16: encode@device all_to_all decode@device encode@device all_gather decode@device"), 800,
      testing::known_traits());
  ASSERT_TRUE(times.ok()) << times.error().message;
  EXPECT_NEAR(times.value()[1].us(), 5000, 250);
  EXPECT_NEAR(times.value()[4].us(), 35'000, 2000);
}

// Messages that are issued at once, four at a time. Each takes `handled_us`, then 0.01 us on the link for each of
// its bytes, and then `wait_us` on its way. Every second step has them one at a time.
std::vector<TimedRun> with_latency(double handled_us, double wait_us) {
  const std::vector<int64_t> sizes = {1000, 40'000, 3000, 10'000, 1000, 200'000, 5000, 20'000};
  core::Strategy plain = strategy_of("all_reduce", {});
  for (const int64_t size : sizes) plain.buckets.push_back(strategy_of("all_reduce", {size}).buckets[0]);
  std::vector<TimedRun> timed;
  for (int step = 0; step < 8; ++step) {
    TimedRun each{plain, {}};
    double handled_until_us = 0, free_us = 0;
    for (size_t b = 0; b < sizes.size(); ++b) {
      const bool waits = step % 2 == 0 || b % 4 == 0;
      const double begin_us = !waits ? each.steps.back().begin_us : b == 0 ? 0 : each.steps.back().end_us + 50;
      handled_until_us = std::max(handled_until_us, begin_us) + handled_us;
      free_us = std::max(free_us, handled_until_us) + 0.01 * 4 * static_cast<double>(sizes[b]);
      each.steps.push_back({static_cast<int32_t>(b), 0, begin_us, free_us + wait_us});
    }
    timed.push_back(std::move(each));
  }
  return timed;
}

TEST(FitCost, MessagesThatTravelAtTheSameTimeLeaveTheLinkFree) {
  const FittedCost fitted = fit_cost(with_latency(0, 5000), kOneTensor, {.size = 2}, testing::known_traits());
  const CollectiveRate& rate = fitted.table.collectives[0];
  EXPECT_NEAR(2 * rate.message_us, 5000, 100);
  EXPECT_NEAR(rate.wait_us, rate.message_us, 1);
  EXPECT_NEAR(rate.byte_us, 0.01, 5e-4);
}

TEST(FitCost, MessagesThatCoresHandleOneAfterTheOtherDoNot) {
  const FittedCost fitted = fit_cost(with_latency(5000, 0), kOneTensor, {.size = 2}, testing::known_traits());
  const CollectiveRate& rate = fitted.table.collectives[0];
  EXPECT_NEAR(2 * rate.message_us, 5000, 100);
  EXPECT_EQ(rate.wait_us, 0);
  EXPECT_NEAR(rate.byte_us, 0.01, 5e-4);
}

TEST(FitCost, AMessageThatStallsNowAndThenCostsItsMean) {
  const core::Strategy plain = strategy_of("all_reduce", {100, 100, 100, 100, 100, 1'000'000});
  std::vector<TimedRun> timed;
  for (int step = 0; step < 50; ++step) {
    TimedRun each{plain, {{5, 0, 100'000, 140'000}}};
    for (int32_t b = 0; b < 5; ++b) {
      // Every second message stalls once; and in each fifth step all messages wait for a peer.
      const double us = (step % 2 == 0 && b == step % 5 ? 3100 : 100) + (step % 5 == 1 ? 4000 : 0);
      each.steps.push_back({b, 0, 10'000.0 * b, 10'000.0 * b + us});
    }
    timed.push_back(std::move(each));
  }
  const FittedCost fitted = fit_cost(timed, kOneTensor, {.size = 2}, testing::known_traits());
  ASSERT_EQ(fitted.table.collectives.size(), 1u);
  EXPECT_NEAR(2 * fitted.table.collectives[0].message_us, 400, 5);
  EXPECT_NEAR(fitted.table.collectives[0].byte_us, 0.01, 1e-4);
}

TEST(FitCost, APeerThatIsLateIsNotTheLinks) {
  // Two of five times another rank comes 30 ms late to the small message, which itself takes 1 ms.
  const core::Strategy plain = strategy_of("all_reduce", {25'000, 2'500'000});
  std::vector<TimedRun> timed;
  for (int step = 0; step < 20; ++step) {
    timed.push_back({plain, {{0, 0, 0, step % 5 < 2 ? 31'000.0 : 1000.0}, {1, 0, 100'000, 200'000}}});
  }
  const FittedCost fitted = fit_cost(timed, kOneTensor, {.size = 2}, testing::known_traits());
  EXPECT_NEAR(fitted.table.collectives[0].byte_us, 0.01, 1e-4);
  EXPECT_NEAR(fitted.table.collectives[0].message_us, 0, 1);
}

TEST(FitCost, MessagesThatStallInADensePeriodCostTheirMean) {
  // 200 us each, two under way at a time; in each second step one of the ten stalls for 3 ms.
  const core::Strategy plain = strategy_of("all_reduce", {100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 1'000'000});
  std::vector<TimedRun> timed;
  for (int step = 0; step < 40; ++step) {
    TimedRun each{plain, {{10, 0, 100'000, 140'000}}};
    double end_us = 0;
    for (int32_t b = 0; b < 10; ++b) {
      const double begin_us = b == 0 ? 0 : end_us - 100;
      end_us += 200 + (step % 2 == 0 && b == step / 2 % 10 ? 3000 : 0);
      each.steps.push_back({b, 0, begin_us, end_us});
    }
    timed.push_back(std::move(each));
  }
  const FittedCost fitted = fit_cost(timed, kOneTensor, {.size = 2}, testing::known_traits());
  EXPECT_NEAR(2 * fitted.table.collectives[0].message_us, 350, 20);
  EXPECT_NEAR(fitted.table.collectives[0].byte_us, 0.01, 1e-4);
}

// Over a slow link all collectives of a step are one long period. None shows the time of a collective without bytes,
// and the times of idle links are known. The times are from two ranks at 200 Mbit/s and 5 ms.
TEST(FitCost, WhereAStepIsOneLongPeriodItsBytesTellOfTheLink) {
  const char *const plain = "all_reduce", *const gather = "bf16: encode@device all_gather decode@device",
                    *const pairs =
                        "bf16: encode@device all_to_all decode@device encode@device all_gather decode@device";
  const auto strategy = [&](std::initializer_list<std::pair<const char*, int64_t>> buckets) {
    core::Strategy made;
    for (const auto& [option, bytes] : buckets) {
      made.buckets.push_back({{{0, 0, bytes / (option == plain ? 4 : 2)}}, option_of(option)});
    }
    return made;
  };
  std::vector<TimedRun> timed(
      3, {strategy({{plain, 1'048'576}, {plain, 17'071'144}}), {{0, 0, 200, 145'700}, {1, 0, 30'400, 841'800}}});
  const auto fit = [&](const CostTable& prior) {
    return fit_cost(timed, kOneTensor, {.size = 2}, testing::known_traits(), prior).table;
  };
  const auto known = [&] { return prior_cost(fit({}), {}, {.flat = {10'300, 10'200}}).value(); };
  const CostTable first = fit(known());
  EXPECT_NEAR(find_rate(first, Kind::all_reduce, Level::flat)->byte_us, 0.0455, 0.001);
  // Other messages start faster or slower, and wait for each other.
  timed.insert(timed.end(), 3,
               {strategy({{gather, 282'720}, {pairs, 4'070'624}, {gather, 11'107'984}, {gather, 28'128}}),
                {{0, 1, 200, 23'100},
                 {1, 1, 13'500, 116'900},
                 {1, 4, 119'100, 679'100},
                 {2, 1, 40'300, 587'500},
                 {3, 1, 119'700, 680'200}}});
  timed.insert(timed.end(), 3,
               {strategy({{gather, 524'288}, {pairs, 4'718'592}, {plain, 12'876'840}}),
                {{0, 1, 100, 32'400}, {1, 1, 15'500, 131'300}, {1, 4, 131'800, 307'800}, {2, 0, 36'900, 814'700}}});
  const CostTable fitted = fit(known());
  for (const Kind kind : {Kind::all_reduce, Kind::all_gather, Kind::all_to_all}) {
    EXPECT_NEAR(find_rate(fitted, kind, Level::flat)->byte_us, 0.0435, 0.004) << core::traits_of(kind).name;
    EXPECT_NEAR(find_rate(fitted, kind, Level::flat)->message_us, 10'300, 1000) << core::traits_of(kind).name;
  }
}

// Payloads that are not full: 40 % of them is used, and 87 % is usual. By the planned sizes a byte would seem to
// cost less than half of its true cost, and so would the collectives of all other payloads.
TEST(FitCost, PayloadsThatAreNotFullCountWithWhatWasSent) {
  const core::TraitsTable all = testing::known_traits();
  std::vector<core::CompressorTraits> known(all.begin(), all.end());
  core::CompressorTraits packed = known[0];
  packed.name = "packed";
  packed.summable = false;
  packed.usual_use = 0.87;
  packed.used_bytes = [](std::span<const std::byte> payload) { return static_cast<int64_t>(payload.size()); };
  known.push_back(packed);
  const core::Option gather = core::gather_payloads({"packed"}, Place::device),
                     bf16 = core::gather_payloads({"bf16"}, Place::device);
  constexpr double kByteUs = 0.01, kUse = 0.4;
  constexpr int kRanks = 4;
  const auto fit = [&](bool is_told, const CostTable& prior = {}) {
    TimedRun timed;
    double now_us = 0;
    for (const int64_t numel : {10'000, 100'000, 400'000, 1'000'000}) {
      const auto b = static_cast<int32_t>(timed.strategy.buckets.size());
      timed.strategy.buckets.push_back({{{0, 0, numel}}, gather});
      const auto sent = static_cast<int64_t>(kUse * 4.0 * static_cast<double>(numel)) * (kRanks - 1);
      const double end_us = now_us + 10 + kByteUs * static_cast<double>(sent);
      timed.steps.push_back({b, 0, now_us, now_us + 10});
      timed.steps.push_back({b, 1, now_us + 10, end_us, is_told ? sent : -1});
      timed.steps.push_back({b, 2, end_us, end_us + 10});
      now_us = end_us + 1000;
    }
    return fit_cost(std::span(&timed, 1), kOneTensor, {.size = kRanks}, known, prior).table;
  };
  const CostTable planned = fit(false), sent = fit(true);
  EXPECT_NEAR(planned.collectives[0].byte_us, kByteUs * kUse / 0.87, 1e-5) << "what this test is about";
  EXPECT_NEAR(sent.collectives[0].byte_us, kByteUs, 1e-5);
  EXPECT_EQ(find_use(planned, {"packed"}), std::nullopt);
  EXPECT_NEAR(find_use(sent, {"packed"}).value(), kUse, 1e-4);
  // The estimate of a sample holds until they were sent.
  const std::vector<core::CodecUse> uses = {{"int4packed", 0.5}, {"packed", 0.75}};
  const CostTable seen{.ranks = {.size = kRanks}, .collectives = {{Kind::all_reduce, Level::flat, 20, 0.008}}};
  const CostTable prior = prior_cost(seen, {{"packed"}, {"bf16"}}, {}, uses).value();
  EXPECT_EQ(find_use(prior, {"bf16"}), std::nullopt);
  EXPECT_EQ(find_use(fit(false, prior), {"packed"}), 0.75);
  EXPECT_NEAR(find_use(fit(true, prior), {"packed"}).value(), kUse, 1e-4);

  CostTable both = sent;
  both.codecs.push_back({{"bf16"}, Place::device, 1, 1e-4, 1, 1e-4, 1e-4});
  const auto gather_us = [&](const core::Option& option) {
    return program_op_costs(both, option, 500'000, known).value()[1].us();
  };
  EXPECT_NEAR(gather_us(gather), kByteUs * kUse * 4 * 500'000 * (kRanks - 1), 0.01 * gather_us(gather));
  EXPECT_NEAR(gather_us(bf16), kByteUs * 2 * 500'000 * (kRanks - 1), 0.01 * gather_us(bf16));
}

// The bytes of all ranks of a node pass over its link.
TEST(FitCost, WhatWasSentCountsForAllThatShareTheLink) {
  const core::Ranks ranks{.size = 4, .local_size = 2};
  const core::Option option = option_of("reduce_scatter@intra all_reduce@inter all_gather@intra");
  const std::vector<OpSize> sizes = op_sizes(option, 1'000'000, ranks, testing::known_traits());
  EXPECT_EQ(sizes[1].sharing, 2);
  EXPECT_EQ(sizes[1].link_bytes, 2 * core::link_bytes(Kind::all_reduce, sizes[1].bytes, 2));
  const std::vector<OpSize> pairs =
      op_sizes(core::two_step({"bf16"}, Place::device), 1'000'000, ranks, testing::known_traits());
  EXPECT_DOUBLE_EQ(pairs[1].sharing * static_cast<double>(core::link_bytes(Kind::all_to_all, pairs[1].bytes, 4)),
                   static_cast<double>(pairs[1].link_bytes));
}

TEST(OpSizes, GradientsOf16BitsAreSummedInTheirOwnTypeByOneCollectiveOnly) {
  const auto bytes = [](const char* option, core::DType dtype) {
    return op_sizes(option_of(option), 1600, {.size = 4}, testing::known_traits(), dtype)[0].bytes;
  };
  for (const core::DType dtype : {core::DType::bf16, core::DType::f16}) {
    EXPECT_EQ(bytes("all_reduce", dtype), 2 * 1600);
    EXPECT_EQ(bytes("reduce_scatter all_gather", dtype), 4 * 400) << "in fp32";
    EXPECT_FALSE(is_staged(option_of("all_reduce"), dtype));
    EXPECT_TRUE(is_staged(option_of("reduce_scatter all_gather"), dtype));
    EXPECT_TRUE(is_staged(option_of("bf16: encode@device all_reduce decode@device"), dtype));
  }
  EXPECT_EQ(bytes("all_reduce", core::DType::f32), 4 * 1600);
  EXPECT_FALSE(is_staged(option_of("reduce_scatter all_gather"), core::DType::f32));
}

TEST(FitCost, ScaleIsWhatPrecedesASum) {
  const core::Strategy plain = strategy_of("all_reduce", {1000, 3000});
  const TimedRun timed{plain, {{0, -1, 0, 2}, {1, -1, 5, 9}, {0, 0, 2, 10}, {1, 0, 10, 30}}};
  const FittedCost fitted = fit_cost(std::span(&timed, 1), kOneTensor, {.size = 2}, testing::known_traits());
  EXPECT_NEAR(fitted.table.scale_us, 1, 1e-9);
  EXPECT_NEAR(fitted.table.scale_element_us, 1e-3, 1e-12);
}

}  // namespace
}  // namespace gradtune::policies
