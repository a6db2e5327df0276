// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/c10d_communicator.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupWrapper.hpp>

#include <sched.h>

#include <csignal>
#include <filesystem>
#include <thread>

#include "hooks/gloo_device.h"
#include "hooks/link_probe.h"
#include "tests/hooks/jobs.h"
#include "tests/hooks/ranks.h"
#include "tests/suites/communicator_conformance.h"

namespace gradtune::test {
namespace {

void conform(int size) {
  run_ranks(size, [](const Rank& rank) {
    auto group = make_group();
    auto communicator =
        make_c10d_communicator(make_gloo_backend("conformance", group->getStore(), rank.rank, rank.size, 20'000, 2));
    suites::run_communicator_conformance(*communicator);
  });
}

TEST(C10dCommunicator, ConformsOnTwoRanks) { conform(2); }
TEST(C10dCommunicator, ConformsOnThreeRanks) { conform(3); }

// Over a backend that is not Gloo by type, as a user's own may be: its collectives are c10d's.
TEST(C10dCommunicator, ConformsOverAnotherBackend) {
  for (const int size : {2, 3}) {
    run_ranks(size, [](const Rank& rank) {
      auto store = make_group()->getStore();
      const auto gloo = [&](const char* prefix) {
        return make_gloo_backend(prefix, store, rank.rank, rank.size, 20'000, 2);
      };
      auto communicator =
          make_c10d_communicator(c10::make_intrusive<c10d::ProcessGroupWrapper>(gloo("wrapped"), gloo("checks")));
      suites::run_communicator_conformance(*communicator);
    });
  }
}

// Whose peer never comes. Its deadline is far beyond the test's.
TEST(C10dCommunicator, AnExchangeUnderWayEndsWhenItIsAborted) {
  run_ranks(2, [](const Rank& rank) {
    auto store = make_group()->getStore();
    auto communicator = make_c10d_communicator(make_gloo_backend("aborted", store, rank.rank, rank.size, 20'000, 2));
    if (rank.rank == 0) {
      std::vector<std::byte> in(8), out(8);
      comm::Waiter waiter;
      auto result = waiter.result();
      communicator->start({.kind = comm::Collective::Kind::all_to_all,
                           .in = in.data(),
                           .out = out.data(),
                           .count = 4,
                           .timeout_ms = 3'600'000},
                          waiter, 0);
      communicator->abort();
      EXPECT_FALSE(result.get());
      store->set("over", std::vector<uint8_t>{1});
    }
    store->wait({"over"});
  });
}

// What is measured is another thing on every machine.
TEST(C10dCommunicator, TheProbeOfItsLatencyIsSane) {
  run_ranks(3, [](const Rank& rank) {
    auto group = make_group();
    auto communicator =
        make_c10d_communicator(make_gloo_backend("probe", group->getStore(), rank.rank, rank.size, 20'000, 4));
    const policies::Latency latency = probe_latency(*communicator, core::SteadyClock(), 20'000);
    EXPECT_GT(latency.message_us, 0);
    EXPECT_GE(latency.wait_us, 0);
    EXPECT_LE(latency.wait_us, latency.message_us);
  });
}

// A write to a rank that was killed ended the process by a signal now and then.
TEST(C10dCommunicator, ABrokenPipeIsAnErrorAndHandlersStay) {
  run_ranks(1, [](const Rank&) {
    auto store = make_group()->getStore();
    const auto own = [](int) {};
    std::signal(SIGPIPE, own);
    make_gloo_backend("first", store, 0, 1, 20'000, 1);
    EXPECT_EQ(std::signal(SIGPIPE, SIG_DFL), +own);
    make_gloo_backend("second", store, 0, 1, 20'000, 1);
    EXPECT_EQ(std::signal(SIGPIPE, SIG_DFL), SIG_IGN);
  });
}

int threads_of_policy(int policy) {
  int threads = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    threads += sched_getscheduler(std::stoi(entry.path().filename())) == policy ? 1 : 0;
  }
  return threads;
}

TEST(GlooDevice, ItsThreadPushesNobodyOffACore) {
  run_ranks(1, [](const Rank&) {
    ASSERT_EQ(threads_of_policy(SCHED_BATCH), 0);
    const auto device = make_gloo_device();
    EXPECT_EQ(threads_of_policy(SCHED_BATCH), 1);
    EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
    std::thread([] { EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER); }).join();
  });
}

TEST(GlooDevice, APolicyThatWasChosenStays) {
  run_ranks(1, [](const Rank&) {
    const sched_param no_priority{};
    ASSERT_EQ(sched_setscheduler(0, SCHED_IDLE, &no_priority), 0);
    const auto device = make_gloo_device();
    EXPECT_EQ(threads_of_policy(SCHED_BATCH), 0);
    EXPECT_EQ(sched_getscheduler(0), SCHED_IDLE);
  });
}

}  // namespace
}  // namespace gradtune::test
