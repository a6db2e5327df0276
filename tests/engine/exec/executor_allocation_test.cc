// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Counts the executor's allocations with its own operator new. In steady state the thread that runs backward
// allocates nothing (I7), and nothing remains after a switch of strategy.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/engine/exec/counting_new.h"
#include "tests/engine/exec/fleet.h"
#include "tests/suites/communicator_ranks.h"

namespace gradtune::exec {
namespace {

class ExecutorAllocation : public testing::Test {
 protected:
  void SetUp() override {
    if (!kCountsAllocations) GTEST_SKIP() << "the sanitizer's allocator is not counted";
  }
};

TEST_F(ExecutorAllocation, AStepAllocatesNothingOnTheThreadThatRunsBackward) {
  const core::GradientTable table = mixed_table();
  std::vector<std::string> options = all_options(core::Place::device);
  options.emplace_back("topk:0.1: encode@host all_to_all decode@host encode@host all_gather decode@host");
  Fleet fleet(2, table, {.host_threads = 1});
  core::Rng rng(1);
  const std::vector<Values> gradients = {random_gradient(table, rng), random_gradient(table, rng)};
  for (const std::string& option : options) {
    fleet.run(make_strategy(table, option, 3'000, 3));
    suites::on_every_rank(2, [&](int r) {
      const auto steps = [&](int count) {
        bool ok = true;
        for (int i = 0; i < count; ++i) {
          fleet.rank(r).load(gradients[static_cast<size_t>(r)]);
          ok = fleet.rank(r).backward().ok() && fleet.rank(r).settle().ok() && ok;
        }
        return ok;
      };
      EXPECT_TRUE(steps(2));
      const int64_t before = allocations_of_thread();
      const bool ok = steps(5);
      const int64_t after = allocations_of_thread();
      EXPECT_TRUE(ok);
      EXPECT_EQ(after, before) << option;
    });
  }
}

TEST_F(ExecutorAllocation, NeitherDoesOneThatPaysBackResiduals) {
  const core::GradientTable table = mixed_table();
  Fleet fleet(2, table);
  core::Rng rng(1);
  const std::vector<Values> gradients = {random_gradient(table, rng), random_gradient(table, rng)};
  fleet.run(make_strategy(table, "topk:0.01: encode@device all_gather decode@device", 3'000, 3));
  for (int i = 0; i < 30; ++i) {
    for (const core::Status& status : fleet.step(gradients)) ASSERT_TRUE(status.ok());
  }
  fleet.commit(make_strategy(table, "all_reduce", 3'000, 3));
  suites::on_every_rank(2, [&](int r) {
    const int64_t before = allocations_of_thread();
    bool drained = true, ok = true;
    for (int i = 0; i < 3; ++i) {
      fleet.rank(r).load(gradients[static_cast<size_t>(r)]);
      ok = fleet.rank(r).backward().ok() && ok;
      drained = drained && fleet.rank(r).executor().drained(0);
      ok = fleet.rank(r).settle().ok() && ok;
    }
    const int64_t after = allocations_of_thread();
    EXPECT_TRUE(ok && drained);
    EXPECT_EQ(after, before);
  });
}

TEST_F(ExecutorAllocation, AThousandSwitchesLeaveNothingBehind) {
  const core::GradientTable table = mixed_table();
  const core::Strategy strategies[] = {
      make_strategy(table, "all_reduce", 1 << 20, 1),
      make_strategy(table, "topk:0.1: encode@host all_to_all decode@host encode@host all_gather decode@host", 3'000, 3),
      make_strategy(table, "efsignsgd:64: encode@device all_gather decode@device", 10'000, 2)};
  Fleet fleet(2, table, {.host_threads = 1});
  core::Rng rng(2);
  const std::vector<Values> gradients = {random_gradient(table, rng), random_gradient(table, rng)};
  int64_t live_early = 0, memory_early = 0;
  for (int change = 0; change <= 1000; ++change) {
    fleet.run(strategies[change % 3]);
    if (change % 50 == 0) {
      for (const core::Status& status : fleet.step(gradients)) ASSERT_TRUE(status.ok());
    }
    if (change == 100) {
      live_early = live_bytes();
      memory_early = fleet.rank(0).executor().memory_bytes();
    }
  }
  EXPECT_LE(live_bytes(), live_early + 4096);  // the group's threads may still hold memory that is about to go
  EXPECT_EQ(fleet.rank(0).executor().memory_bytes(), memory_early);
}

// If any allocation of a strategy's memory fails, the earlier strategy remains unchanged, and nothing else.
TEST_F(ExecutorAllocation, MemoryThatTheSystemRefusesLeavesAllAsItWas) {
  const core::GradientTable table = mixed_table();
  const GradientArenas gradients(table);
  const std::string rounds = "encode@device all_reduce decode@device encode@device.1 all_reduce decode@device.1";
  const std::string befores[] = {"all_reduce", "powersgd:1: " + rounds};  // the residuals of the latter are parked
  for (const std::string& before : befores) {
    Workspace workspace({.size = 2}, /*seed=*/1);
    workspace.set_gradients(table, gradients.arenas());
    const auto add = [&](int32_t slot, const std::string& option) {
      auto program = workspace.compile(slot, make_strategy(table, option, 1 << 20, 1));
      return workspace.add(slot, std::move(program.value()), INT64_MAX);
    };
    ASSERT_TRUE(add(0, before).ok());
    workspace.run(0);
    const std::span<std::byte> state = workspace.carried().state;
    std::fill(state.begin(), state.end(), std::byte{3});
    const int64_t bytes = workspace.memory_bytes();
    int refused = 0;
    for (;; ++refused) {
      fail_aligned_alloc_after(refused);
      const core::Status status = add(1, "powersgd:4: " + rounds);
      fail_aligned_alloc_after(-1);
      if (status) break;
      EXPECT_EQ(status.error().code, core::Error::Code::io);
      EXPECT_EQ(workspace.memory_bytes(), bytes) << before << ", allocation " << refused;
    }
    EXPECT_GT(refused, 2) << "the pool, and two copies of the state";
    EXPECT_GT(workspace.memory_bytes(), bytes);
    const std::span<std::byte> kept = workspace.carried().state;
    EXPECT_EQ(kept.size(), state.size());
    EXPECT_TRUE(std::all_of(kept.begin(), kept.end(), [](std::byte byte) { return byte == std::byte{3}; }));
  }
}

}  // namespace
}  // namespace gradtune::exec
