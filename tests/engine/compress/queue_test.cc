// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/queue.h"

#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

#include "engine/core/result.h"

namespace gradtune::compress {
namespace {

void expect_each_block_once(HostQueue& queue) {
  for (int64_t blocks : {0, 1, 2, 1000}) {
    std::vector<std::atomic<int>> calls(static_cast<size_t>(blocks));
    for_blocks(queue, blocks, [&](int64_t block) { ++calls[static_cast<size_t>(block)]; });
    for (const std::atomic<int>& count : calls) EXPECT_EQ(count, 1);
  }
}

TEST(Queue, SerialRunsEachBlockOnceInOrderOnTheCallingThread) {
  const auto queue = make_serial_queue();
  EXPECT_EQ(queue->threads(), 1);
  expect_each_block_once(*queue);
  const std::thread::id caller = std::this_thread::get_id();
  std::vector<int64_t> seen;
  for_blocks(*queue, 5, [&](int64_t block) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    seen.push_back(block);
  });
  EXPECT_EQ(seen, (std::vector<int64_t>{0, 1, 2, 3, 4}));
}

#ifndef __SANITIZE_THREAD__  // ThreadSanitizer cannot see the synchronisation of a oneTBB that was built without it

TEST(Queue, ArenaRunsEachBlockOnce) {
  const tbb::global_control four_even_on_fewer_cores(tbb::global_control::max_allowed_parallelism, 4);
  for (int threads : {1, 2, 4}) {
    const auto queue = make_arena_queue(threads);
    EXPECT_EQ(queue->threads(), threads);
    expect_each_block_once(*queue);
  }
}

TEST(Queue, ArenaServesSeveralCallersAtOnce) {
  const auto queue = make_arena_queue(2);
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) callers.emplace_back([&] { expect_each_block_once(*queue); });
  for (std::thread& caller : callers) caller.join();
}

#endif

TEST(Queue, AnArenaWithoutThreadsIsRefused) { EXPECT_THROW(make_arena_queue(0), core::ProgramError); }

}  // namespace
}  // namespace gradtune::compress
