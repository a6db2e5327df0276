// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/core/bounded_wait.h"

#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <utility>

namespace gradtune::core {
namespace {

TEST(BoundedThread, RunsItsBodyAndIsJoinedOnce) {
  std::atomic<int> runs = 0;
  BoundedThread thread("a thread", [&] { ++runs; });
  EXPECT_TRUE(thread.joinable());
  thread.join();
  EXPECT_FALSE(thread.joinable());
  thread.join();
  EXPECT_EQ(runs, 1);
}

TEST(BoundedThread, IsJoinedWhenItIsDestroyed) {
  std::atomic<bool> goes_on = true, has_ended = false;
  {
    BoundedThread nothing, moved;
    BoundedThread thread("a thread", [&] {
      while (goes_on) std::this_thread::yield();
      has_ended = true;
    });
    moved = std::move(thread);
    EXPECT_FALSE(nothing.joinable());
    EXPECT_TRUE(moved.joinable());
    goes_on = false;
  }
  EXPECT_TRUE(has_ended);
}

TEST(BoundedThreadDeathTest, OneThatDoesNotEndEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto stuck = [] {
    BoundedThread thread("the thread of a test", [] { std::this_thread::sleep_for(std::chrono::hours(1)); });
    thread.join(/*limit_ms=*/100);
  };
  EXPECT_EXIT(stuck(), testing::KilledBySignal(SIGABRT),
              "gradtune: the thread of a test did not end within 100 ms, and what it works on cannot be freed");
}

TEST(BoundedWaitDeathTest, SoDoesWhatNeverHolds) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto stuck = [] {
    std::mutex mutex;
    std::condition_variable changed;
    std::unique_lock lock(mutex);
    wait_or_end_process(
        changed, lock, [] { return true; }, "what holds");
    wait_or_end_process(
        changed, lock, [] { return false; }, "what never holds", 50);
  };
  EXPECT_EXIT(stuck(), testing::KilledBySignal(SIGABRT), "gradtune: what never holds did not end within 50 ms");
}

}  // namespace
}  // namespace gradtune::core
