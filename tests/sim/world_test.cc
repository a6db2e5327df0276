// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/result.h"

namespace gradtune::sim {
namespace {

using testing::ElementsAre;

TEST(World, LetsEventsHappenInTheOrderOfTheirTimesAndThenOfTheirCalls) {
  World world({});
  std::vector<int> happened;
  const auto happen = [&](int what) { return [&happened, what] { happened.push_back(what); }; };
  world.at(20, 0, happen(3));
  world.at(10, 0, happen(1));
  world.at(20, 1, happen(4));
  world.at(10, 0, [&] {
    happened.push_back(2);
    EXPECT_EQ(world.now_ns(), 10);
    EXPECT_THROW(world.at(9, 0, happen(9)), core::ProgramError);
    world.after(15, -1, happen(5));
  });
  world.run_until(20);
  EXPECT_THAT(happened, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(world.clock().now_ns(), 20);
  world.run_all();
  EXPECT_THAT(happened, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(world.now_ns(), 25);
  EXPECT_FALSE(world.run_next());
}

TEST(World, NothingHappensToACrashedRank) {
  World world({});
  int happened = 0;
  for (int rank : {-1, 0, 1}) world.at(10, rank, [&] { ++happened; });
  world.crash(1);
  world.run_all();
  EXPECT_EQ(happened, 2);
}

TEST(World, LinksCarryOneCollectiveAfterTheOtherAtTheSpeedOfTheSlowest) {
  World world({.size = 2, .rank = {.bytes_per_second = 1e9, .latency_ns = 7}});
  EXPECT_EQ(world.reserve_links_ns(1000, 2), 1014);
  EXPECT_EQ(world.reserve_links_ns(500, 1), 1507);
  world.set_rank(1, {.bytes_per_second = 1e8, .latency_ns = 9});
  EXPECT_EQ(world.reserve_links_ns(500, 1), 1500 + 5000 + 9);
  world.run_until(100'000);
  EXPECT_EQ(world.reserve_links_ns(0, 0), 100'000);
}

TEST(World, ASlowRankTakesLonger) {
  World world({});
  world.set_rank(1, {.slowdown = 2.5});
  EXPECT_EQ(world.work_ns(0, 1000), 1000);
  EXPECT_EQ(world.work_ns(1, 1000), 2500);
}

TEST(World, DelaysComeFromTheSeedAlone) {
  const auto draw = [](uint64_t seed) {
    World world({.seed = seed, .jitter_ns = 1000, .stall_probability = 0.2, .stall_ns = 1'000'000});
    std::vector<int64_t> delays;
    for (int i = 0; i < 1000; ++i) delays.push_back(world.draw_delay_ns());
    return delays;
  };
  EXPECT_EQ(draw(1), draw(1));
  EXPECT_NE(draw(1), draw(2));
  int stalls = 0;
  for (const int64_t delay : draw(3)) {
    EXPECT_GE(delay, 0);
    EXPECT_LT(delay, 1'001'000);
    stalls += delay >= 1000 ? 1 : 0;
  }
  EXPECT_NEAR(stalls, 200, 60);
}

TEST(World, TheTraceTellsApartWhatHappenedWhenAndToWhom) {
  const auto trace = [](int64_t time, int rank, std::string_view what, uint64_t value) {
    World world({});
    world.run_until(time);
    world.note(rank, what, value);
    return world.trace_hash();
  };
  EXPECT_EQ(trace(1, 0, "start", 5), trace(1, 0, "start", 5));
  EXPECT_NE(trace(1, 0, "start", 5), trace(2, 0, "start", 5));
  EXPECT_NE(trace(1, 0, "start", 5), trace(1, 1, "start", 5));
  EXPECT_NE(trace(1, 0, "start", 5), trace(1, 0, "told", 5));
  EXPECT_NE(trace(1, 0, "start", 5), trace(1, 0, "start", 6));
}

}  // namespace
}  // namespace gradtune::sim
