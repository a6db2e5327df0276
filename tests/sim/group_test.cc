// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/suites/communicator_conformance.h"

namespace gradtune::sim {
namespace {

using comm::Collective;
using core::Error;
using testing::HasSubstr;

constexpr RankModel kRank{.bytes_per_second = 1e9, .latency_ns = 1'000};

WorldOptions rough(int size, uint64_t seed) {
  return {
      .size = size, .seed = seed, .rank = kRank, .jitter_ns = 100'000, .stall_probability = 0.1, .stall_ns = 5'000'000};
}

suites::Players players(World& world, const std::vector<std::unique_ptr<comm::Communicator>>& group) {
  suites::Players all{.ranks = {}, .progress = [&world] { core::check(world.run_next(), "nothing happens any more"); }};
  for (const auto& rank : group) all.ranks.push_back(rank.get());
  return all;
}

class SimGroup : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SimGroup, testing::Values(1, 2, 3, 4, 5, 6));

TEST_P(SimGroup, Conforms) {
  World world(rough(GetParam(), 1));
  const auto group = make_group(world);
  suites::run_communicator_conformance(players(world, group));
}

TEST_P(SimGroup, AbortsMeetsDeadlinesAndRefusesMisuse) {
  World world(rough(GetParam(), 2));
  const auto aborted = make_group(world);
  suites::run_communicator_abort(players(world, aborted));
  if (GetParam() == 1) return;
  const auto late = make_group(world);
  suites::run_communicator_deadline(players(world, late));
  const auto misused = make_group(world);
  suites::run_communicator_misuse(players(world, misused));
}

// Records the completions in order.
class Log final : public comm::CompletionSink {
 public:
  explicit Log(const World& world) : world_(world) {}
  void complete(uint64_t token, core::Status status, core::Fence) override {
    times_ns[token] = world_.now_ns();
    order.push_back(token);
    if (!status) errors[token] = status.error();
  }

  std::map<uint64_t, int64_t> times_ns;
  std::vector<uint64_t> order;
  std::map<uint64_t, Error> errors;

 private:
  const World& world_;
};

Collective bytes(Collective::Kind kind, int64_t count, int64_t timeout_ms = 1'000'000) {
  return {.kind = kind, .count = count, .timeout_ms = timeout_ms};
}

TEST(SimGroupTime, ACollectiveTakesWhatTheAlgorithmSendsOverTheSlowestLink) {
  World world({.size = 4, .rank = kRank});
  const auto group = make_group(world);
  Log log(world);
  std::vector<std::vector<std::byte>> sent(4, std::vector<std::byte>(1'000'000)),
      gathered(4, std::vector<std::byte>(4'000'000));
  for (size_t rank = 0; rank < 4; ++rank) {
    world.at(static_cast<int64_t>(1'000 * rank), static_cast<int>(rank), [&, rank] {
      Collective reduce = bytes(Collective::Kind::all_reduce, 1'000'000),
                 gather = bytes(Collective::Kind::all_gather, 1'000'000);
      reduce.out = sent[rank].data();
      gather.in = sent[rank].data();
      gather.out = gathered[rank].data();
      group[rank]->start(reduce, log, rank);
      group[rank]->start(gather, log, 10 + rank);
    });
  }
  world.run_all();
  // All join at 3 us; a ring all-reduce sends 2 * 3/4 of the bytes in 6 messages, an all-gather three times the
  // bytes in 3.
  for (uint64_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(log.times_ns[rank], 3'000 + 1'500'000 + 6'000);
    EXPECT_EQ(log.times_ns[10 + rank], 3'000 + 1'500'000 + 3'000'000 + 3'000);
  }
}

TEST(SimGroupTime, CompletionsOvertakeEachOtherDifferentlyOnEachRank) {
  World world(rough(3, 3));
  const auto group = make_group(world);
  std::vector<Log> logs(3, Log(world));
  std::vector<std::byte> value(1);
  for (uint64_t token = 0; token < 100; ++token) {
    for (size_t rank = 0; rank < 3; ++rank) {
      Collective call = bytes(Collective::Kind::broadcast, 0);
      group[rank]->start(call, logs[rank], token);
    }
  }
  world.run_all();
  std::set<std::vector<uint64_t>> orders;
  for (const Log& log : logs) {
    EXPECT_EQ(log.order.size(), 100U);
    EXPECT_FALSE(std::is_sorted(log.order.begin(), log.order.end()));
    orders.insert(log.order);
  }
  EXPECT_EQ(orders.size(), 3U);
}

TEST(SimGroupFaults, ACrashedRankIsNamedAtTheDeadlineAndTheOthersHearOfIt) {
  World world({.size = 3, .rank = kRank});
  const auto group = make_group(world);
  std::vector<Log> logs(3, Log(world));
  for (uint64_t call = 0; call < 10; ++call) {
    for (size_t rank = 0; rank < 3; ++rank) {
      world.at(static_cast<int64_t>(call) * 1'000'000, static_cast<int>(rank), [&, rank, call] {
        group[rank]->start(bytes(Collective::Kind::broadcast, 0, rank == 0 ? 50 : 60), logs[rank], call);
      });
    }
  }
  world.run_until(4'500'000);
  world.crash(1);
  world.run_all();
  EXPECT_EQ(logs[1].order.size(), 5U);
  for (size_t rank : {0, 2}) {
    EXPECT_EQ(logs[rank].order.size(), 10U);
    EXPECT_EQ(logs[rank].errors.size(), 5U);
  }
  EXPECT_EQ(logs[0].errors[5].code, Error::Code::timeout);
  EXPECT_EQ(logs[0].errors[5].message, "broadcast timed out after 50 ms waiting for rank 1");
  EXPECT_EQ(logs[0].times_ns[5], 55'000'000);
  EXPECT_EQ(logs[2].errors[5].code, Error::Code::lost);
  EXPECT_THAT(logs[2].errors[5].message, HasSubstr("rank 0 is lost: broadcast timed out"));
  EXPECT_EQ(logs[2].times_ns[5], 55'001'000);
}

TEST(SimGroupLifetime, DestructionRunsTheWorldUntilNothingIsUnderWay) {
  World world(rough(2, 4));
  auto group = make_group(world);
  Log log(world);
  for (auto& rank : group) rank->start(bytes(Collective::Kind::broadcast, 0), log, 0);
  group.clear();
  EXPECT_EQ(log.order.size(), 2U);
}

}  // namespace
}  // namespace gradtune::sim
