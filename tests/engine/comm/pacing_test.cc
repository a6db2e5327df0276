// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/comm/pacing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

#include "tests/engine/comm/thread_group.h"
#include "tests/suites/communicator_conformance.h"
#include "tests/suites/communicator_ranks.h"

namespace gradtune::comm {
namespace {

using suites::on_every_rank;
using Group = std::vector<std::unique_ptr<Communicator>>;

const core::SteadyClock steady;
constexpr LinkSpeed kFast{.bytes_per_second = 2e9, .latency_ns = 50'000};

Group make_paced_group(int size, const LinkSpeed& speed) {
  Group group = make_thread_group(size, {.threads = 2});
  for (auto& rank : group) rank = make_paced(std::move(rank), make_paced_link(speed, steady));
  return group;
}

class Pacing : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Pacing, testing::Values(1, 2, 3, 4));

TEST_P(Pacing, Conforms) {
  const Group group = make_paced_group(GetParam(), kFast);
  on_every_rank(GetParam(), [&](int rank) { suites::run_communicator_conformance(*group[static_cast<size_t>(rank)]); });
}

TEST_P(Pacing, EndsAsItsInnerCommunicatorDoes) {
  const Group aborted = make_paced_group(GetParam(), kFast);
  on_every_rank(GetParam(),
                [&](int rank) { suites::run_communicator_abort({{aborted[static_cast<size_t>(rank)].get()}}); });
  if (GetParam() == 1) return;
  const Group late = make_paced_group(GetParam(), kFast);
  on_every_rank(GetParam(),
                [&](int rank) { suites::run_communicator_deadline({{late[static_cast<size_t>(rank)].get()}}); });
}

// Bytes that take `ms` on the link from one rank to the other.
constexpr double kBytesPerSecond = 100e6;
Collective gather(std::vector<std::byte>& out, int rank, int64_t ms) {
  const auto count = static_cast<int64_t>(kBytesPerSecond * 1e-3) * ms;
  out.resize(static_cast<size_t>(2 * count));
  return {.kind = Collective::Kind::all_gather, .in = out.data() + rank * count, .out = out.data(), .count = count};
}

TEST(PacingTime, CompletesNoEarlierThanTheLinkWouldHave) {
  const LinkSpeed speed{.bytes_per_second = kBytesPerSecond, .latency_ns = 5'000'000};
  Group group = make_paced_group(2, speed);
  on_every_rank(2, [&](int rank) {
    std::vector<std::byte> bytes;
    const int64_t start_ns = steady.now_ns();
    ASSERT_TRUE(run(*group[static_cast<size_t>(rank)], gather(bytes, rank, 20)).ok());
    EXPECT_GE(steady.now_ns() - start_ns, 25'000'000);
  });
}

TEST(PacingTime, AnotherSpeedHoldsForWhatIsAskedForThen) {
  Group group = make_thread_group(2);
  std::vector<std::shared_ptr<PacedLink>> links;
  for (auto& each : group) {
    links.push_back(make_paced_link({.bytes_per_second = 1e12}, steady));
    each = make_paced(std::move(each), links.back());
  }
  on_every_rank(2, [&](int rank) {
    std::vector<std::byte> bytes;
    ASSERT_TRUE(run(*group[static_cast<size_t>(rank)], gather(bytes, rank, 20)).ok());
    set_speed(*links[static_cast<size_t>(rank)], {.bytes_per_second = kBytesPerSecond});
    const int64_t start_ns = steady.now_ns();
    ASSERT_TRUE(run(*group[static_cast<size_t>(rank)], gather(bytes, rank, 20)).ok());
    EXPECT_GE(steady.now_ns() - start_ns, 20'000'000);
  });
}

TEST(PacingTime, CommunicatorsOfOneLinkShareIt) {
  Group data = make_thread_group(2), control = make_thread_group(2);
  for (size_t rank = 0; rank < 2; ++rank) {
    const auto link = make_paced_link({.bytes_per_second = kBytesPerSecond}, steady);
    data[rank] = make_paced(std::move(data[rank]), link);
    control[rank] = make_paced(std::move(control[rank]), link);
  }
  class Ignore final : public CompletionSink {
    void complete(uint64_t, core::Status, core::Fence) override {}
  };
  on_every_rank(2, [&](int rank) {
    std::vector<std::byte> first, second;
    Ignore ignore;
    const int64_t start_ns = steady.now_ns();
    data[static_cast<size_t>(rank)]->start(gather(first, rank, 20), ignore, 0);
    ASSERT_TRUE(run(*control[static_cast<size_t>(rank)], gather(second, rank, 10)).ok());
    EXPECT_GE(steady.now_ns() - start_ns, 30'000'000);
    data[static_cast<size_t>(rank)].reset();
  });
}

TEST(PacingTime, WhatTheLinkCanNotCarryInTimeIsATimeout) {
  Group group = make_paced_group(2, {.bytes_per_second = 1});
  on_every_rank(2, [&](int rank) {
    std::vector<std::byte> bytes;
    Collective collective = gather(bytes, rank, 1);
    collective.timeout_ms = 300;
    const core::Status status = run(*group[static_cast<size_t>(rank)], collective);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, core::Error::Code::timeout);
    const core::Status later = run(*group[static_cast<size_t>(rank)], gather(bytes, rank, 1));
    EXPECT_FALSE(later.ok());
  });
}

TEST(PacingExceptions, ACallThatThrowsWasNotStarted) {
  Group group = make_thread_group(1, {.falls_silent = [](int, int64_t call) -> bool {
                                    if (call == 1) throw std::runtime_error("injected");
                                    return false;
                                  }});
  group[0] = make_paced(std::move(group[0]), make_paced_link({.bytes_per_second = 1e12}, steady));
  std::vector<std::byte> bytes;
  EXPECT_TRUE(run(*group[0], gather(bytes, 0, 1)).ok());
  const core::Status status = run(*group[0], gather(bytes, 0, 1));
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("injected"), std::string::npos);
  EXPECT_FALSE(run(*group[0], gather(bytes, 0, 1)).ok()) << "it was aborted";
  group[0].reset();  // waits for nothing
}

}  // namespace
}  // namespace gradtune::comm
