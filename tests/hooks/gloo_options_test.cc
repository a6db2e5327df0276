// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/gloo_options.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <thread>

#include "tests/hooks/ranks.h"

namespace gradtune::test {
namespace {

bool set_policy(int policy) {
  const sched_param no_priority{};
  return sched_setscheduler(0, policy, &no_priority) == 0;
}

bool may_change_policy() {
  return sched_getscheduler(0) == SCHED_OTHER && set_policy(SCHED_BATCH) && set_policy(SCHED_OTHER);
}

int threads_of_policy(int policy) {
  int threads = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    threads += sched_getscheduler(std::stoi(entry.path().filename())) == policy ? 1 : 0;
  }
  return threads;
}

constexpr const char* kNoOther = "threads here are not of the usual policy, or may not have another one";

TEST(GlooOptions, TheThreadOfTheirInterfacePushesNobodyOffACore) {
  if (!may_change_policy()) GTEST_SKIP() << kNoOther;
  run_ranks(1, [](const Rank&) {
    ASSERT_EQ(threads_of_policy(SCHED_BATCH), 0);
    const auto options = make_gloo_options(std::chrono::seconds(20));
    EXPECT_EQ(threads_of_policy(SCHED_BATCH), 1);
    EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
    std::thread([] { EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER); }).join();
  });
}

TEST(GlooOptions, APolicyThatWasChosenStays) {
  if (!may_change_policy()) GTEST_SKIP() << kNoOther;
  run_ranks(1, [](const Rank&) {
    ASSERT_TRUE(set_policy(SCHED_IDLE));
    const auto options = make_gloo_options(std::chrono::seconds(20));
    EXPECT_EQ(threads_of_policy(SCHED_BATCH), 0);
    EXPECT_EQ(sched_getscheduler(0), SCHED_IDLE);
  });
}

}  // namespace
}  // namespace gradtune::test
