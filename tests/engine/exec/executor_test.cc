// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <future>
#include <thread>

#include "tests/engine/exec/checked_step.h"
#include "tests/engine/exec/fleet.h"
#include "tests/suites/communicator_ranks.h"

namespace gradtune::exec {
namespace {

using core::DType;
using core::Error;
using core::Place;
using testing::HasSubstr;

void expect_ok(const std::vector<core::Status>& statuses) {
  for (const core::Status& status : statuses) ASSERT_TRUE(status.ok()) << status.error().message;
}

// --- Averages and residuals ------------------------------------------------------------------------------------------

class ExecutorRanks : public testing::TestWithParam<int> {
 protected:
  const core::GradientTable table_ = mixed_table();
  core::Rng rng_{17};
};
INSTANTIATE_TEST_SUITE_P(Ranks, ExecutorRanks, testing::Values(1, 2, 3, 4));

TEST_P(ExecutorRanks, EveryProgramAveragesUnderEveryPartitionAtEveryPlace) {
  Fleet fleet(GetParam(), table_, kWithHost, {.threads = 2});
  for (const Place place : {Place::device, Place::host}) {
    for (const std::string& option : all_options(place)) {
      int in_flight = 1;
      for (const int64_t bytes : {int64_t{1} << 30, int64_t{10'000}, int64_t{1'500}}) {
        fleet.run(make_strategy(table_, option, bytes, in_flight++));
        for (int i = 0; i < 2; ++i) checked_step(fleet, table_, option, rng_);
      }
    }
  }
}

TEST_P(ExecutorRanks, NothingIsLostAcrossSwitchesOfStrategyAndPartition) {
  Fleet fleet(GetParam(), table_, kWithHost, {.threads = 2});
  std::vector<std::string> options = all_options(Place::device);
  for (std::string& option : all_options(Place::host)) options.push_back(std::move(option));
  for (int change = 0; change < 12; ++change) {
    const std::string& option = options[rng_.below(options.size())];
    fleet.run(make_strategy(table_, option, 1'000 + static_cast<int64_t>(rng_.below(40'000)),
                            1 + static_cast<int>(rng_.below(4))));
    for (int i = 0; i < 7; ++i) checked_step(fleet, table_, option, rng_);
  }
}

// A rank's share of an average of doubled gradients is its share of their sum, to the bit. So it is with residuals.
TEST(Executor, SumsOfTwoRanksAreTheAveragesOfDoubledGradients) {
  const core::GradientTable table = mixed_table();
  ExecutorOptions sums = kWithHost;
  sums.sums = true;
  Fleet summing(2, table, sums), averaging(2, table, kWithHost);
  core::Rng rng(23);
  for (const Place place : {Place::device, Place::host}) {
    for (const std::string& option : all_options(place)) {
      if (option.starts_with("sign")) continue;  // signs do not show that gradients are doubled
      const core::Strategy strategy = make_strategy(table, option, 10'000, 1);
      summing.run(strategy);
      averaging.run(strategy);
      for (int i = 0; i < 3; ++i) {
        const std::vector<Values> gradients = random_gradients(table, 2, rng);
        std::vector<Values> doubled = gradients;
        for (Values& each : doubled) {
          for (float& value : each) value *= 2;
        }
        expect_ok(summing.step(gradients));
        expect_ok(averaging.step(doubled));
        ASSERT_EQ(summing.rank(0).average(), averaging.rank(0).average()) << option;
        ASSERT_EQ(summing.rank(1).average(), averaging.rank(0).average()) << option;
      }
    }
  }
}

TEST(Executor, AStepWithoutGradientsIsAStep) {
  Fleet fleet(2, make_table({{0, DType::f32}}));
  fleet.run(core::Strategy{});
  for (int i = 0; i < 3; ++i) expect_ok(fleet.step({{}, {}}));
}

// Two ranks send each element once: one half of them to be added, and the sums of the other half.
TEST(Executor, CountsTheBytesOfEachStep) {
  const core::GradientTable table = make_table({{1000, DType::f32}, {3000, DType::f32}});
  for (const auto& [option, bytes] :
       {std::pair{"all_reduce", 4 * 4000}, std::pair{"bf16: encode@device all_reduce decode@device", 2 * 4000}}) {
    Fleet fleet(2, table);
    fleet.run(make_strategy(table, option, 2000, 4));
    for (int step = 0; step < 2; ++step) {
      for (const core::Status& status : fleet.step({Values(4000, 1), Values(4000, 2)})) ASSERT_TRUE(status.ok());
      EXPECT_EQ(fleet.rank(0).executor().times().bytes, bytes) << option;
    }
  }
}

// It asks over a network that may be full.
TEST(Executor, WhatTheAlarmTakesIsWaiting) {
  const core::SteadyClock clock;
  std::promise<void> asked;
  std::atomic<int> calls = 0;
  double asking_ms = 0;
  const auto alarm = [&]() -> core::Status {
    if (calls++ > 0) return {};
    const int64_t begin_ns = clock.now_ns();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    asking_ms = static_cast<double>(clock.now_ns() - begin_ns) * 1e-6;
    asked.set_value();
    return {};
  };
  const core::GradientTable table = make_table({{100, DType::f32}});
  Fleet fleet(2, table, {.alarm = alarm});
  fleet.run(make_strategy(table, "all_reduce", 1 << 20, 1));
  suites::on_every_rank(2, [&](int r) {
    if (r == 1) asked.get_future().wait();
    ASSERT_TRUE(fleet.rank(r).step(Values(100, 1)).ok());
  });
  EXPECT_GE(fleet.rank(0).executor().times().wait_ms, comm::kAlarmPeriodMs + asking_ms);
}

TEST(Executor, ResidualsStayWithATableThatOnlyChangedTimesAndGoWithAnyOther) {
  const core::GradientTable table = make_table({{400, DType::f32}, {400, DType::f32}});
  Fleet fleet(1, table);
  Rank& rank = fleet.rank(0);
  const core::Strategy strategy = make_strategy(table, "topk:0.1: encode@device all_gather decode@device", 1 << 20, 1);
  fleet.run(strategy);
  core::Rng rng(1);
  for (int i = 0; i < 3; ++i) expect_ok(fleet.step({random_gradient(table, rng)}));
  const Values residual = rank.residual();
  EXPECT_NE(residual, Values(800, 0));

  core::GradientTable timed = table;
  timed.tensors[1].ready_us = 12;
  rank.executor().set_gradients(timed, rank.arenas());
  fleet.run(strategy);
  EXPECT_EQ(rank.residual(), residual);

  core::GradientTable other = table;
  std::swap(other.tensors[0], other.tensors[1]);
  rank.executor().set_gradients(other, rank.arenas());
  fleet.run(strategy);
  EXPECT_EQ(rank.residual(), Values(800, 0));
}

TEST(Executor, RandomCompressorsDrawAnewInEveryStepAndOnEveryRank) {
  const core::GradientTable table = make_table({{1024, DType::f32}});
  const auto strategy = make_strategy(table, "terngrad:256: encode@device all_gather decode@device", 1 << 20, 1);
  Values gradient(1024);
  core::Rng rng(1);
  for (size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = i % 256 == 0 ? 127 : static_cast<float>(rng.uniform() * 200 - 100);
  }
  const auto averages = [&](uint64_t seed) {
    Fleet fleet(2, table, {.seed = seed});
    fleet.run(strategy);
    std::vector<Values> steps;
    for (int i = 0; i < 3; ++i) {
      expect_ok(fleet.step({gradient, gradient}));
      steps.push_back(fleet.rank(0).average());
    }
    return steps;
  };
  const std::vector<Values> steps = averages(1);
  EXPECT_EQ(averages(1), steps);
  EXPECT_NE(averages(2)[0], steps[0]);
  EXPECT_NE(steps[0], steps[1]);
  EXPECT_NE(steps[1], steps[2]);
  // Each rank adds multiples of 63.5; if both had drawn alike, averages would be multiples of 127.
  EXPECT_TRUE(std::any_of(steps[0].begin(), steps[0].end(), [](float value) { return value != std::floor(value); }));
}

// --- Refusals --------------------------------------------------------------------------------------------------------

const char* const kTopk = "topk:0.1: encode@device all_to_all decode@device encode@device all_gather decode@device";

const char* const kPowerSgd =
    "powersgd:2: encode@device all_reduce decode@device encode@device.1 all_reduce decode@device.1";

TEST(Executor, AStepThatIsNotFiniteLeavesTheStateOfCodecsAsItWas) {
  const core::GradientTable table = make_table({{600, DType::f32}, {143, DType::f32}});
  Fleet disturbed(2, table), calm(2, table);
  core::Rng rng(3);
  for (Fleet* fleet : {&disturbed, &calm}) fleet->run(make_strategy(table, kPowerSgd, 1 << 20, 1));
  for (int step = 0; step < 4; ++step) {
    const std::vector<Values> gradients = random_gradients(table, 2, rng);
    for (const core::Status& status : calm.step(gradients)) ASSERT_TRUE(status.ok());
    for (const core::Status& status : disturbed.step(gradients)) ASSERT_TRUE(status.ok());
    EXPECT_EQ(disturbed.rank(1).average(), calm.rank(0).average());
    EXPECT_EQ(disturbed.residuals(), calm.residuals());
    std::vector<Values> bad = random_gradients(table, 2, rng);
    bad[static_cast<size_t>(step % 2)][static_cast<size_t>(step) * 150] = std::numeric_limits<float>::infinity();
    for (const core::Status& status : disturbed.step(bad)) ASSERT_TRUE(status.ok());
    EXPECT_TRUE(std::isnan(disturbed.rank(0).average()[0]));
  }
}

TEST(States, AreZeroAtFirstAndKeptTwice) {
  States states;
  EXPECT_EQ(states.bytes(), 0);
  states = *states.larger(8);
  EXPECT_EQ(states.current()[7], std::byte{0});
  states.next()[7] = std::byte{5};
  EXPECT_EQ(states.current()[7], std::byte{0});
  states.swap();
  EXPECT_EQ(states.current()[7], std::byte{5});
  EXPECT_FALSE(states.larger(8));
  states = *states.larger(100);  // for another strategy, while this one is in force
  EXPECT_EQ(states.bytes(), 200);
  EXPECT_EQ(states.current()[7], std::byte{5});
  EXPECT_EQ(states.current()[99], std::byte{0});
  states.clear();
  EXPECT_EQ(states.current()[7], std::byte{0});
}

TEST(ExecutorPrepare, AnErrorLeavesAllAsItWas) {
  const core::GradientTable table = mixed_table();
  const core::Strategy good = make_strategy(table, kTopk, 10'000, 2);
  core::Strategy gap = good;
  gap.buckets.pop_back();
  core::Strategy idle = good;
  idle.in_flight = 0;
  const struct {
    core::Strategy strategy;
    const char* message;
  } refused[] = {
      {gap, "no bucket holds"},
      {idle, "in_flight is 0"},
      {make_strategy(table, "bf16: encode@device all_gather", 10'000, 1), "does not end in the average"},
      {make_strategy(table, "bf16: encode@host all_reduce decode@host", 10'000, 1), "host thread"},
  };
  Fleet fleet(2, table), undisturbed(2, table);
  core::Rng rng(5);
  for (Fleet* each : {&fleet, &undisturbed}) each->run(good);
  for (const auto& [strategy, message] : refused) {
    const std::vector<Values> gradients = random_gradients(table, 2, rng);
    for (Fleet* each : {&fleet, &undisturbed}) expect_ok(each->step(gradients));
    for (int r = 0; r < 2; ++r) {
      Executor& executor = fleet.rank(r).executor();
      const int64_t bytes = executor.memory_bytes();
      const core::Status status = executor.prepare(7, strategy);
      ASSERT_FALSE(status.ok());
      EXPECT_THAT(status.error().message, HasSubstr(message));
      EXPECT_EQ(executor.memory_bytes(), bytes);
      EXPECT_EQ(executor.strategy(), good);
      EXPECT_THROW(executor.run(7), core::ProgramError);
    }
  }
  EXPECT_EQ(fleet.rank(1).average(), undisturbed.rank(1).average());
  EXPECT_EQ(fleet.residuals(), undisturbed.residuals());
}

TEST(ExecutorPrepare, KeepsTheMemoryBudgetToTheByte) {
  const core::GradientTable table = mixed_table();
  const core::Strategy strategy = make_strategy(table, kTopk, 10'000, 2);
  Fleet free(1, table);
  free.run(strategy);
  const int64_t bytes = free.rank(0).executor().memory_bytes();
  EXPECT_GE(bytes, table.numel() * 8);

  Fleet enough(1, table, {.memory_budget_bytes = bytes});
  EXPECT_TRUE(enough.rank(0).executor().prepare(0, strategy).ok());
  EXPECT_EQ(enough.rank(0).executor().memory_bytes(), bytes);

  Fleet short_of_one(1, table, {.memory_budget_bytes = bytes - 1});
  const core::Status status = short_of_one.rank(0).executor().prepare(0, strategy);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Error::Code::invalid);
  EXPECT_THAT(status.error().message, HasSubstr("memory_budget allows " + std::to_string(bytes - 1)));
  EXPECT_EQ(short_of_one.rank(0).executor().memory_bytes(), 0);
}

TEST(ExecutorPrepare, TheStrategyInForceIsNeitherReplacedNorDropped) {
  const core::GradientTable table = make_table({{100, DType::f32}});
  Fleet fleet(1, table);
  fleet.run(make_strategy(table, "all_reduce", 1'000, 1));
  Executor& executor = fleet.rank(0).executor();
  EXPECT_THROW((void)executor.prepare(0, executor.strategy()), core::ProgramError);
  EXPECT_THROW(executor.drop(0), core::ProgramError);
}

// Gradients that tensor_ready brings piece by piece give the same bits as those in the arena, and are not needed
// afterwards.
TEST(ExecutorGradients, MayLieElsewhere) {
  const core::GradientTable table = mixed_table();
  for (const std::string& option : all_options(core::Place::device)) {
    core::Rng rng(5);
    const std::vector<Values> gradients = random_gradients(table, 2, rng);
    std::vector<Values> results[2];
    for (const bool elsewhere : {false, true}) {
      Fleet fleet(2, table, kWithHost);
      fleet.run(make_strategy(table, option, 3'000, 3));
      suites::on_every_rank(2, [&](int r) {
        Rank& rank = fleet.rank(r);
        GradientArenas source(table);
        source.write(gradients[static_cast<size_t>(r)]);
        rank.load(elsewhere ? Values(gradients[0].size(), 7) : gradients[static_cast<size_t>(r)]);
        EXPECT_TRUE(rank.executor().begin_step().ok());
        const core::ArenaLayout layout = core::lay_arenas(table);
        for (size_t t = 0; t < table.tensors.size(); ++t) {
          const auto [arena, begin] = layout.tensors[t];
          const int64_t width = core::bytes_per_element(table.tensors[t].dtype);
          std::byte* values = source.arenas()[static_cast<size_t>(arena)].data + begin * width;
          const Arrived arrived = elsewhere ? Arrived::dense_at(values) : Arrived();
          EXPECT_TRUE(rank.executor().tensor_ready(static_cast<int32_t>(t), arrived));
          std::fill_n(values, table.tensors[t].numel * width, std::byte{0xFF});
        }
        EXPECT_TRUE(rank.executor().finish_backward().ok());
        EXPECT_TRUE(rank.settle().ok());
      });
      results[elsewhere] = fleet.residuals();
      for (int r = 0; r < 2; ++r) results[elsewhere].push_back(fleet.rank(r).average());
    }
    EXPECT_EQ(results[true], results[false]) << option;
  }
}

TEST(ExecutorGradients, AreFiniteOrNotWhereverTheyLie) {
  const core::GradientTable table = mixed_table();
  for (const std::string& option : all_options(core::Place::device)) {
    for (const bool elsewhere : {false, true}) {
      Fleet fleet(2, table, kWithHost);
      fleet.run(make_strategy(table, option, 3'000, 3));
      suites::on_every_rank(2, [&](int r) {
        Rank& rank = fleet.rank(r);
        const core::ArenaLayout layout = core::lay_arenas(table);
        for (size_t bad = 0; bad <= table.tensors.size(); ++bad) {  // in the last round none is bad
          if (bad < table.tensors.size() && table.tensors[bad].numel == 0) continue;
          rank.load(Values(static_cast<size_t>(table.numel()), 1));
          GradientArenas source(table);
          source.write(Values(static_cast<size_t>(table.numel()), 1));
          EXPECT_TRUE(rank.executor().begin_step().ok());
          for (size_t t = 0; t < table.tensors.size(); ++t) {
            const auto [arena, begin] = layout.tensors[t];
            const int64_t width = core::bytes_per_element(table.tensors[t].dtype);
            const Arenas arenas = elsewhere ? source.arenas() : rank.arenas();
            std::byte* values = arenas[static_cast<size_t>(arena)].data + begin * width;
            // All bits: a NaN of every type.
            if (t == bad && r == 1) std::fill_n(values + (table.tensors[t].numel - 1) * width, width, std::byte{0xFF});
            rank.executor().tensor_ready(static_cast<int32_t>(t), elsewhere ? Arrived::dense_at(values) : Arrived());
          }
          EXPECT_TRUE(rank.executor().finish_backward().ok());
          EXPECT_EQ(rank.finite(), bad == table.tensors.size()) << option << ", tensor " << bad;
          EXPECT_TRUE(rank.executor().conclude(rank.finite()).ok());
        }
      });
    }
  }
}

}  // namespace
}  // namespace gradtune::exec
