// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/c10d_communicator.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupWrapper.hpp>

#include <csignal>

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
TEST(C10dCommunicator, TheProbeOfItsLinkIsSane) {
  run_ranks(3, [](const Rank& rank) {
    auto group = make_group();
    auto communicator =
        make_c10d_communicator(make_gloo_backend("probe", group->getStore(), rank.rank, rank.size, 20'000, 4));
    const policies::IdleLink messages = probe_link(*communicator, core::SteadyClock(), 20'000, /*most_bytes=*/0);
    EXPECT_GT(messages.message_us, 0);
    EXPECT_GE(messages.wait_us, 0);
    EXPECT_LE(messages.wait_us, messages.message_us);
    EXPECT_EQ(messages.byte_us, 0);
    const policies::IdleLink bytes = probe_link(*communicator, core::SteadyClock(), 20'000, 8 << 20);
    EXPECT_GT(bytes.byte_us, 1e-6);  // 1 TB/s
    EXPECT_LT(bytes.byte_us, 1);     // 1 MB/s
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

}  // namespace
}  // namespace gradtune::test
