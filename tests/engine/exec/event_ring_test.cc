// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/event_ring.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace gradtune::exec {
namespace {

TEST(Turn, WhoTakesOneLooksAgainAtWhatIsLeftMeanwhile) {
  Turn turn;
  EXPECT_FALSE(turn.is_seen());
  int looks = 0;
  turn.take([&] {
    if (++looks == 1) turn.take([] { FAIL() << "it is another one's turn"; });
    if (looks == 2) {
      EXPECT_TRUE(turn.is_seen());
    }
  });
  EXPECT_EQ(looks, 3);
  EXPECT_FALSE(turn.is_seen());
}

// A thread that is not seen takes a turn, as in executors: one thread or another pops all pushed events, in order.
TEST(Turn, NothingIsLeftThatNobodyLooksAt) {
  constexpr int kThreads = 4, kEvents = 20'000;
  struct Event {
    int from = 0, number = 0;
  };
  EventRing<Event> ring(kThreads * kEvents);
  Turn turn;
  std::vector<int> seen(kThreads);
  const auto look = [&] {
    Event event;
    while (ring.pop(event)) {
      EXPECT_EQ(event.number, seen[static_cast<size_t>(event.from)]);
      ++seen[static_cast<size_t>(event.from)];
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int from = 0; from < kThreads; ++from) {
      threads.emplace_back([&, from] {
        for (int number = 0; number < kEvents; ++number) {
          ring.push({from, number});
          if (!turn.is_seen()) turn.take(look);
        }
      });
    }
  }
  EXPECT_EQ(seen, std::vector<int>(kThreads, kEvents));
}

}  // namespace
}  // namespace gradtune::exec
