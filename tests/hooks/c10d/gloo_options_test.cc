// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/c10d/gloo_options.h"

#include <gmock/gmock.h>
#include <sched.h>
#include <sys/types.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/hooks/ranks.h"

namespace gradtune::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

bool set_policy(int policy, pid_t thread = 0) {
  const sched_param no_priority{};
  return sched_setscheduler(thread, policy, &no_priority) == 0;
}

bool may_change_policy() {
  return sched_getscheduler(0) == SCHED_OTHER && set_policy(SCHED_BATCH) && set_policy(SCHED_OTHER);
}

std::vector<pid_t> all_threads() {
  std::vector<pid_t> threads;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    threads.push_back(std::stoi(entry.path().filename()));
  }
  return threads;
}

int64_t threads_of_policy(int policy) { return std::ranges::count(all_threads(), policy, sched_getscheduler); }

constexpr const char* kNoOther = "threads here are not of the usual policy, or may not have another one";

TEST(GlooOptions, TheThreadOfTheirInterfacePushesNobodyOffACore) {
  if (!may_change_policy()) GTEST_SKIP() << kNoOther;
  run_ranks(1, [](const Rank&) {
    std::thread([] {}).join();  // a sanitizer starts its own thread beside the first one
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
    const int64_t of_batch = threads_of_policy(SCHED_BATCH);
    const int own = sched_getscheduler(0);
    // On a busy machine a process that only runs when all others are idle would not finish.
    for (const pid_t thread : all_threads()) set_policy(SCHED_OTHER, thread);
    EXPECT_EQ(of_batch, 0);
    EXPECT_EQ(own, SCHED_IDLE);
  });
}

Environment environment_of(const std::map<std::string, std::string>& variables) {
  return [variables](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

core::Status check(const char* names) { return check_interfaces(environment_of({{"GLOO_SOCKET_IFNAME", names}})); }

TEST(GlooOptions, InterfacesThatAreNotThereAreNamed) {
  EXPECT_TRUE(check_interfaces(environment_of({})));
  EXPECT_TRUE(check("lo"));
  EXPECT_TRUE(check("lo,lo"));
  for (const char* names : {"eth99", "^lo", "lo,eth99", "lo ", "lo,,lo"}) {
    const core::Status status = check(names);
    ASSERT_FALSE(status) << names;
    EXPECT_THAT(status.error().message,
                AllOf(HasSubstr(std::string("GLOO_SOCKET_IFNAME is \"") + names + '"'), HasSubstr("lo (127.0.0.1)")));
  }
}

TEST(GlooOptions, TheAddressThatIsOfferedIsTheInterfaces) {
  run_ranks(1, [](const Rank&) { EXPECT_EQ(offered_address(), "127.0.0.1"); },
            {.environment = {{"GLOO_SOCKET_IFNAME", "lo"}}});
}

TEST(GlooOptions, ALoopbackAddressIsToldWhereTheMasterHasNone) {
  const auto why = [](const std::vector<std::string>& offered, const std::string& master) {
    return why_unreachable(offered, /*own_rank=*/1, environment_of({{"MASTER_ADDR", master}}));
  };
  EXPECT_THAT(why({"198.18.0.1", "127.0.1.1"}, "198.18.0.1"),
              AllOf(StartsWith("rank 1 offered 127.0.1.1, "), HasSubstr("MASTER_ADDR is 198.18.0.1"),
                    HasSubstr("set GLOO_SOCKET_IFNAME there"), HasSubstr("not set, and the host's name resolves to"),
                    HasSubstr("lo (127.0.0.1)")));
  EXPECT_THAT(why({"::1", "198.18.0.2", "127.0.0.1"}, "node1"),
              AllOf(StartsWith("rank 0 offered ::1, rank 2 offered 127.0.0.1, "), Not(HasSubstr("not set"))));
  EXPECT_EQ(why({"127.0.0.1", "127.0.0.1"}, "localhost"), "") << "all ranks are on this machine";
  EXPECT_EQ(why({"192.0.2.1", "127.0.0.1"}, "127.0.0.1"), "");
  EXPECT_THAT(why_unreachable({"127.0.0.1"}, 0, environment_of({{"MASTER_ADDR", "a"}, {"GLOO_SOCKET_IFNAME", "lo"}})),
              HasSubstr("here it is \"lo\""));
}

TEST(GlooOptions, AddressesOfDifferentNetworksAreTold) {
  const auto why = [](const std::vector<std::string>& offered) {
    return why_unreachable(offered, /*own_rank=*/0, environment_of({{"MASTER_ADDR", "198.18.0.1"}}));
  };
  EXPECT_EQ(why({"198.18.0.1", "172.17.0.1"}),
            "offered to each other were: rank 0 198.18.0.1, rank 1 172.17.0.1 (GLOO_SOCKET_IFNAME chooses)");
  EXPECT_THAT(why({"198.18.0.1", ""}), HasSubstr("rank 1 none yet"));
  EXPECT_THAT(why(std::vector<std::string>{"a", "b", "c", "d", "e", "f", "g", "h", "i"}), HasSubstr("rank 7 h, ..."));
  EXPECT_EQ(why({"198.18.0.1"}), "");
}

}  // namespace
}  // namespace gradtune::test
