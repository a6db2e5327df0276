// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests programs on real ranks: every program of the decision tree in four processes, two nodes of two, and those of
// sparse tensors, with Gloo between them.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>

#include "engine/exec/draining.h"
#include "policies/space/decision_tree.h"
#include "tests/engine/exec/order_of_sums.h"
#include "tests/hooks/gloo_executor.h"
#include "tests/hooks/ranks.h"

namespace gradtune::test {
namespace {

using core::DType;
using exec::Values;
using policies::Steps;

constexpr int kSize = 4, kLocalSize = 2;

// Over all ranks, the applied and kept values equal the former ones; the average itself is correct if nothing is
// kept.
void check_every_program(const Rank& rank, std::span<const core::Place> places, const core::CompressorSpec& codec) {
  const core::GradientTable table = exec::make_table({{37, DType::f32}, {205, DType::f32}, {91, DType::f32}});
  auto group = make_group();
  exec::RankGroups groups = connect(group->getStore(), rank.rank, kSize, kLocalSize, codec.name + "/");
  comm::Communicator& flat = *groups.flat;
  exec::Rank me(table, std::move(groups), {.host_threads = 1, .timeout_ms = 30'000});
  std::vector<Steps> programs = policies::flat_programs(places);
  for (Steps& steps : policies::hierarchical_programs(places)) programs.push_back(std::move(steps));
  programs.push_back(core::recursive_doubling({}, places.front(), kSize).steps);
  core::Rng rng(7);  // every rank knows the gradients of all ranks
  int32_t slot = 0;
  for (const Steps& steps : programs) {
    const std::string option = to_string(policies::with_codecs(steps, codec, codec));
    ASSERT_TRUE(me.executor().prepare(slot, exec::make_strategy(table, option, 440, 3)).ok()) << option;
    me.executor().run(slot);
    if (slot > 0) me.executor().drop(slot - 1);
    ++slot;
    const std::vector<Values> gradients = exec::random_gradients(table, kSize, rng);
    const std::vector<double> before = summed(flat, in_fp64(me.residual()));
    const core::Status status = me.step(gradients[static_cast<size_t>(rank.rank)]);
    ASSERT_TRUE(status.ok()) << option << ": " << status.error().message;
    const std::vector<double> after = summed(flat, in_fp64(me.residual()));
    const Values average = me.average();
    for (size_t i = 0; i < average.size(); ++i) {
      double given = before[i];
      for (const Values& gradient : gradients) given += static_cast<double>(gradient[i]);
      const double found = kSize * static_cast<double>(average[i]) + after[i];
      ASSERT_NEAR(found, given, 1e-5 * (1 + std::abs(given))) << option << ", element " << i;
    }
  }
}

constexpr core::Place kBoth[] = {core::Place::device, core::Place::host};

TEST(Programs, EveryOneOfTheTreeRunsOverGloo) {
  run_ranks(kSize, [](const Rank& rank) {
    check_every_program(rank, std::span(kBoth, 1), {"none"});
    check_every_program(rank, std::span(kBoth, 1), {"topk", 0.1});
  });
}

// A table with few rows, added in the order that a scheme states: by rank, or sum by sum along dimensions.
void check_order_of_sums(const Rank& rank) {
  constexpr int64_t kRows = 60, kWidth = 4;
  core::GradientTable table;
  table.tensors.push_back({.name = "table", .shape = {kRows, kWidth}, .numel = kRows * kWidth});
  auto group = make_group();
  exec::Rank me(table, connect(group->getStore(), rank.rank, rank.size, rank.size, "order/"), {.timeout_ms = 30'000});
  core::Rng rng(13);
  int32_t slot = 0;
  for (const core::CompressorSpec& codec : std::vector<core::CompressorSpec>{{"rows"}, {"coo"}, {"blocks", 16}}) {
    const std::pair<core::Option, std::vector<int>> schemes[] = {
        {core::gather_payloads(codec, core::Place::device), {rank.size}},
        {core::two_step(codec, core::Place::device), {rank.size}},
        {core::recursive_doubling(codec, core::Place::device, rank.size), core::mesh_of(rank.size)}};
    for (const auto& [option, mesh] : schemes) {
      ASSERT_TRUE(me.executor().prepare(slot, core::uniform({{{0, 0, kRows * kWidth}}}, option, 1)).ok());
      me.executor().run(slot);
      if (slot > 0) me.executor().drop(slot - 1);
      ++slot;
      std::vector<Values> gradients = exec::random_gradients(table, rank.size, rng);
      for (Values& gradient : gradients) {
        for (int64_t row = 0; row < kRows; ++row) {
          if (rng.below(4) == 0) continue;
          std::fill_n(gradient.begin() + row * kWidth, kWidth, 0.0F);
        }
      }
      ASSERT_TRUE(me.step(gradients[static_cast<size_t>(rank.rank)]).ok()) << to_string(option);
      me.executor().lay_out_average(0);
      ASSERT_EQ(me.average(), exec::average_along(mesh, gradients)) << to_string(option);
    }
  }
}

TEST(Programs, SparseSchemesAddInTheirOrderOverGloo) {
  for (const int size : {1, 2, 3, 4, 5, 6}) run_ranks(size, check_order_of_sums);
}

int64_t resident_bytes() {
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

template <class Value>
double norm(const std::vector<Value>& values) {
  double squares = 0;
  for (const Value value : values) squares += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(squares);
}

// The most that a strategy without loss applies: 1 + kDrainShare times the ranks' gradients, by their root mean
// square.
double most_applied(const std::vector<Values>& gradients) {
  double squares = 0;
  for (const Values& gradient : gradients) squares += std::pow(norm(gradient), 2) / static_cast<double>(kSize);
  return (1 + exec::kDrainShare) * std::sqrt(squares) * (1 + 1e-5);
}

// A new strategy in every step is prepared and put in force, on trial or for good, and the former one is dropped.
// Over all of them, the applied and kept values equal the given ones.
void switch_often(const Rank& rank, int switches) {
  const core::GradientTable table = exec::make_table({{370, DType::f32}, {2050, DType::f32}, {91, DType::f32}});
  auto group = make_group();
  exec::RankGroups groups = connect(group->getStore(), rank.rank, kSize, kLocalSize, "switches/");
  comm::Communicator& flat = *groups.flat;
  exec::Rank me(table, std::move(groups), {.host_threads = 1, .timeout_ms = 30'000});
  const std::vector<std::string> options = {
      "all_reduce",
      "topk:0.1: encode@device all_gather decode@device",
      "none: encode@host all_to_all decode@host encode@host all_gather decode@host",
      "efsignsgd: encode@device all_to_all decode@device encode@device all_gather decode@device",
      "onebit: reduce_scatter@intra encode@device all_gather@inter decode@device all_gather@intra",
      "topk:0.1: encode@device all_gather@dim0 decode@device encode@device all_gather@dim1 decode@device",
  };
  core::Rng rng(11);
  std::vector<double> given(2511), applied(2511);
  int64_t settled_bytes = 0;
  for (int32_t slot = 0; slot < switches; ++slot) {
    const std::string& option = options[rng.below(options.size())];
    const auto bucket_elements = static_cast<int64_t>(200 + rng.below(2000));
    const core::Strategy strategy =
        exec::make_strategy(table, option, bucket_elements, 1 + static_cast<int>(rng.below(4)));
    ASSERT_TRUE(me.executor().prepare(slot, strategy).ok()) << option;
    rng.below(2) == 0 ? me.executor().commit(slot) : me.executor().run(slot);
    if (slot > 0) me.executor().drop(slot - 1);
    const std::vector<Values> gradients = exec::random_gradients(table, kSize, rng);
    const core::Status status = me.step(gradients[static_cast<size_t>(rank.rank)]);
    ASSERT_TRUE(status.ok()) << option << ": " << status.error().message;
    const Values average = me.average();
    if (!me.executor().program().keeps_residual) {
      ASSERT_LE(norm(average), most_applied(gradients)) << option;
    }
    for (size_t i = 0; i < average.size(); ++i) {
      for (const Values& gradient : gradients) given[i] += static_cast<double>(gradient[i]);
      applied[i] += kSize * static_cast<double>(average[i]);
    }
    if (slot == switches / 2) settled_bytes = resident_bytes();
  }
  if (!kSanitizing) {  // a sanitizer keeps its own records of all memory ever used
    EXPECT_LE(resident_bytes() - settled_bytes, int64_t{2} << 20) << "of " << settled_bytes;
  }
  const std::vector<double> kept = summed(flat, in_fp64(me.residual()));
  for (size_t i = 0; i < given.size(); ++i) {
    ASSERT_NEAR(applied[i] + kept[i], given[i], 1e-4 * std::sqrt(switches)) << i;
  }
}

TEST(Programs, ManySwitchesLeaveMemoryFlatAndLoseNothing) {
  const char* const wanted = std::getenv("SWITCHES");
  const int switches = wanted != nullptr ? std::atoi(wanted) : 100;
  run_ranks(kSize, [&](const Rank& rank) { switch_often(rank, switches); }, {.time_limit_s = 3000});
}

// Residuals of several gradients on real ranks. They are parked while a strategy without loss is on trial, and gone
// some steps after it was committed. No step applies more than it may.
void drain_after_commit(const Rank& rank) {
  const core::GradientTable table = exec::make_table({{3'000, DType::f32}, {5'000, DType::f32}});
  auto group = make_group();
  exec::RankGroups groups = connect(group->getStore(), rank.rank, kSize, kLocalSize, "drain/");
  comm::Communicator& flat = *groups.flat;
  exec::Rank me(table, std::move(groups), {.host_threads = 1, .timeout_ms = 30'000});
  exec::Executor& executor = me.executor();
  ASSERT_TRUE(executor.prepare(0, exec::make_strategy(table, "all_reduce", 9'000, 2)).ok());
  const std::string topk = "topk:0.01: encode@device all_gather decode@device";
  ASSERT_TRUE(executor.prepare(1, exec::make_strategy(table, topk, 20'000, 2)).ok());
  core::Rng rng(3);
  std::vector<Values> gradients;
  const auto step = [&] {
    gradients = exec::random_gradients(table, kSize, rng);
    return me.step(gradients[static_cast<size_t>(rank.rank)]).ok();
  };
  executor.run(1);
  for (int i = 0; i < 60; ++i) ASSERT_TRUE(step());
  const Values owed = me.residual();
  EXPECT_GT(norm(owed), 3 * norm(gradients[0]));
  executor.run(0);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(step());
    EXPECT_EQ(me.residual(), owed) << "on trial";
  }
  executor.commit(0);
  executor.drop(1);
  const int64_t bytes = executor.memory_bytes();
  std::vector<double> before = summed(flat, in_fp64(owed));
  int steps = 0;
  for (; norm(before) > 0 && steps < 100; ++steps) {  // on any rank
    ASSERT_TRUE(step());
    const Values average = me.average();
    const std::vector<double> after = summed(flat, in_fp64(me.residual()));
    EXPECT_LE(norm(average), most_applied(gradients));
    for (size_t i = 0; i < average.size(); ++i) {
      double given = before[i] - after[i];
      for (const Values& gradient : gradients) given += static_cast<double>(gradient[i]);
      ASSERT_NEAR(kSize * static_cast<double>(average[i]), given, 1e-4) << "step " << steps << ", element " << i;
    }
    before = after;
  }
  EXPECT_GE(steps, 6);
  EXPECT_LE(steps, 30);
  EXPECT_EQ(me.residual(), Values(8'000, 0));
  EXPECT_LE(executor.memory_bytes(), bytes - 8 * 8'000) << "the memory is free";
}

TEST(Programs, ResidualsDrainAfterACommitOverGloo) { run_ranks(kSize, drain_after_commit); }

}  // namespace
}  // namespace gradtune::test
