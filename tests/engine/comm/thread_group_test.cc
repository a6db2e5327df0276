// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/comm/thread_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <stdexcept>
#include <thread>

#include "tests/suites/communicator_conformance.h"
#include "tests/suites/communicator_ranks.h"

namespace gradtune::comm {
namespace {

using core::Error;
using suites::on_every_rank;
using testing::HasSubstr;

class ThreadGroup : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ThreadGroup, testing::Values(1, 2, 3, 4, 5, 6));
class ThreadGroupOfSeveral : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ThreadGroupOfSeveral, testing::Values(2, 3, 4, 5));

TEST_P(ThreadGroup, Conforms) {
  const auto group = make_thread_group(GetParam(), {.threads = 2});
  on_every_rank(GetParam(), [&](int rank) { suites::run_communicator_conformance(*group[static_cast<size_t>(rank)]); });
}

TEST_P(ThreadGroup, Aborts) {
  const auto group = make_thread_group(GetParam());
  on_every_rank(GetParam(),
                [&](int rank) { suites::run_communicator_abort({{group[static_cast<size_t>(rank)].get()}}); });
}

TEST_P(ThreadGroupOfSeveral, MeetsDeadlinesAndRefusesMisuse) {
  const auto one = make_thread_group(GetParam());
  on_every_rank(GetParam(),
                [&](int rank) { suites::run_communicator_deadline({{one[static_cast<size_t>(rank)].get()}}); });
  const auto other = make_thread_group(GetParam());
  on_every_rank(GetParam(),
                [&](int rank) { suites::run_communicator_misuse({{other[static_cast<size_t>(rank)].get()}}); });
}

Collective any_reduction(double& value, int64_t timeout_ms) {
  return {.kind = Collective::Kind::all_reduce,
          .type = WireType::f64,
          .out = reinterpret_cast<std::byte*>(&value),
          .count = 1,
          .timeout_ms = timeout_ms};
}

TEST(ThreadGroupFaults, ASilentRankIsNamedByTheOthersAndEndsToo) {
  auto group = make_thread_group(3, {.falls_silent = [](int rank, int64_t call) { return rank == 1 && call >= 2; }});
  std::vector<core::Status> last(3);
  on_every_rank(3, [&](int rank) {
    double value = 1;
    for (int call = 0; call < 2; ++call)
      EXPECT_TRUE(run(*group[static_cast<size_t>(rank)], any_reduction(value, 60'000)).ok());
    EXPECT_EQ(value, 9);
    last[static_cast<size_t>(rank)] =
        run(*group[static_cast<size_t>(rank)], any_reduction(value, rank == 0 ? 100 : 60'000));
  });
  EXPECT_EQ(last[0].error().code, Error::Code::timeout);
  EXPECT_THAT(last[0].error().message, HasSubstr("all_reduce timed out after 100 ms waiting for rank 1"));
  for (const size_t rank : {1, 2}) {
    EXPECT_EQ(last[rank].error().code, Error::Code::lost);
    EXPECT_THAT(last[rank].error().message, HasSubstr("rank 0 is lost"));
  }
}

TEST(ThreadGroupFaults, ARankThatLeavesIsLostForThoseThatWaitForItAndForThoseThatCome) {
  auto group = make_thread_group(3);
  on_every_rank(3, [&](int rank) {
    auto mine = std::move(group[static_cast<size_t>(rank)]);
    if (rank == 2) return;
    double value = 1;
    const core::Status status = run(*mine, any_reduction(value, 60'000));
    EXPECT_EQ(status.error().code, Error::Code::lost);
    EXPECT_THAT(status.error().message, HasSubstr("rank 2 is lost: it closed its communicator"));
  });
}

TEST(ThreadGroupFaults, AnAlarmEndsTheWaitForARankThatWillNotCome) {
  auto group = make_thread_group(2);
  double value = 1;
  int asked = 0;
  const core::Status status = run(*group[0], any_reduction(value, 60'000), [&]() -> core::Status {
    return ++asked < 2 ? core::Status() : Error{Error::Code::lost, "rank 1 told that it had failed"};
  });
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(status.error().message, "rank 1 told that it had failed");
  EXPECT_FALSE(run(*group[0], any_reduction(value, 60'000)).ok()) << "the communicator is dead";
}

class CountingSink final : public CompletionSink {
 public:
  void complete(uint64_t, core::Status, core::Fence) override { ++told; }
  std::atomic<int> told = 0;
};

TEST(ThreadGroupLifetime, DestructionWaitsForWhatIsUnderWay) {
  auto group = make_thread_group(2, {.threads = 2});
  on_every_rank(2, [&](int rank) {
    auto mine = std::move(group[static_cast<size_t>(rank)]);
    CountingSink sink;
    std::array<double, 50> values{};
    for (double& value : values) mine->start(any_reduction(value, 60'000), sink, 0);
    mine.reset();
    EXPECT_EQ(sink.told, 50);
  });
}

// --- What breaks the contract, or can not keep it --------------------------------------------------------------------

TEST(ThreadGroupExceptions, ACallThatThrowsWasNotStarted) {
  auto group = make_thread_group(2, {.falls_silent = [](int rank, int64_t call) -> bool {
                                   if (rank == 0 && call == 1) throw std::runtime_error("injected");
                                   return false;
                                 }});
  on_every_rank(2, [&](int rank) {
    auto mine = std::move(group[static_cast<size_t>(rank)]);
    double value = 1;
    EXPECT_TRUE(run(*mine, any_reduction(value, 60'000)).ok());
    const core::Status status = run(*mine, any_reduction(value, 60'000));
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(status.error().message, HasSubstr(rank == 0 ? "injected" : "rank 0 is lost"));
  });
}

TEST(ThreadGroupExceptions, ASinkThatThrowsIsItsOwnersLoss) {
  class Throws final : public CompletionSink {
    void complete(uint64_t, core::Status, core::Fence) override { throw std::runtime_error("a sink must not"); }
  };
  auto group = make_thread_group(2);
  on_every_rank(2, [&](int rank) {
    auto mine = std::move(group[static_cast<size_t>(rank)]);
    Throws throws;
    CountingSink counts;
    double value = 1;
    mine->start(any_reduction(value, 60'000), rank == 0 ? static_cast<CompletionSink&>(throws) : counts, 0);
    double other = 1;
    EXPECT_TRUE(run(*mine, any_reduction(other, 60'000)).ok());
    mine.reset();
    EXPECT_EQ(counts.told, rank == 0 ? 0 : 1);
  });
}

TEST(ThreadGroupDeathTest, ASinkThatDoesNotReturnEndsTheProcessOfWhoeverLeaves) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  class Sleeps final : public CompletionSink {
    void complete(uint64_t, core::Status, core::Fence) override { std::this_thread::sleep_for(std::chrono::hours(1)); }
  };
  const auto stuck = [] {
    auto group = make_thread_group(1, {.most_wait_ms = 100});
    Sleeps sleeps;
    double value = 1;
    group[0]->start(any_reduction(value, 100), sleeps, 0);
    group[0].reset();
  };
  EXPECT_EXIT(stuck(), testing::KilledBySignal(SIGABRT),
              "gradtune: what a rank of a group has under way did not end within");
}

}  // namespace
}  // namespace gradtune::comm
