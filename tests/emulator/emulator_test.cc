// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The emulator finds all planted bugs, and none in correct kernels.
#include "tests/emulator/emulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "tests/emulator/cuda.h"
#include "tests/emulator/planted_bugs.h"

namespace gradtune::emulator {
namespace {

using testing::HasSubstr;

std::vector<uint32_t> run(const Planted& bug, Schedule schedule) {
  std::vector<uint32_t> out(kPlantedWords);
  set_schedule(schedule, 3);
  launch(bug.blocks, kPlantedThreads, [&] { bug.kernel(out.data()); });
  set_schedule(Schedule::forward);
  return out;
}

TEST(Emulator, FindsWhatIsPlanted) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "it would report the races, which the next test looks for";
#endif
  for (const Planted& bug : planted_bugs()) {
    SCOPED_TRACE(bug.name);
    std::string error;
    bool same = true;
    try {
      const std::vector<uint32_t> forward = run(bug, Schedule::forward);
      EXPECT_TRUE(bug.shown != Shown::by_value || forward[0] == 0xa5a5a5a5 + 2);
      same = forward == run(bug, Schedule::reverse) && forward == run(bug, Schedule::shuffled);
    } catch (const std::runtime_error& thrown) {
      error = thrown.what();
    }
    EXPECT_EQ(error.empty(), bug.shown != Shown::by_error) << error;
    EXPECT_THAT(error, HasSubstr(std::string(bug.error)));
    EXPECT_EQ(same, bug.shown != Shown::by_results);
  }
}

// It runs in a separate program, which is built with it.
TEST(Emulator, ThreadSanitizerSeesThreadsWarpsAndBlocks) {
  if (std::string(PLANTED_BUG_PROGRAM).empty()) GTEST_SKIP() << "this build has another sanitizer";
  for (size_t i = 0; i < planted_bugs().size(); ++i) {
    const Planted& bug = planted_bugs()[i];
    SCOPED_TRACE(bug.name);
    // gcc 12's ThreadSanitizer does not know the randomized memory layouts of newer kernels.
    const std::string command =
        "TSAN_OPTIONS=atexit_sleep_ms=0 setarch -R " PLANTED_BUG_PROGRAM " " + std::to_string(i) + " 2>&1";
    FILE* const pipe = popen(command.c_str(), "r");
    ASSERT_NE(pipe, nullptr);
    std::string text;
    std::array<char, 4096> part;
    for (size_t got; (got = fread(part.data(), 1, part.size(), pipe)) > 0;) text.append(part.data(), got);
    const int status = pclose(pipe);
    if (bug.is_race) {
      EXPECT_THAT(text, HasSubstr("WARNING: ThreadSanitizer: data race"));
      EXPECT_THAT(text, HasSubstr("planted_bugs.cc:"));
    } else {
      EXPECT_THAT(text, testing::Not(HasSubstr("ThreadSanitizer")));
      EXPECT_EQ(status == 0, bug.shown != Shown::by_error) << text;
    }
  }
}

TEST(Emulator, AnErrorNamesThreadBlockAndLine) {
  const auto late = [] {
    if (threadIdx.x == 5 && blockIdx.x == 1) return;
    __syncthreads();
  };
  try {
    launch({2, 1}, {8, 1}, late);
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("thread (0,0,0) of block (1,0,0) waits for ever at "));
    EXPECT_THAT(error.what(), HasSubstr("emulator_test.cc:"));
  }
  std::vector<int> ran(3);  // the next launch works as usual
  launch(1, 3, [&] { ran[threadIdx.x] = 1; });
  EXPECT_THAT(ran, testing::Each(1));
}

TEST(Emulator, BlocksOfAnotherSizeAreRefused) {
  EXPECT_THROW(launch(1, 1025, [] {}), std::runtime_error);
  EXPECT_THROW(launch(1, 0, [] {}), std::runtime_error);
}

TEST(Emulator, PositionsAreThoseOfTheGrid) {
  std::vector<int> seen(2 * 3 * 4 * 5);
  launch({2, 3}, {4, 5}, [&] {
    EXPECT_EQ(blockDim.x * blockDim.y, 20U);
    EXPECT_EQ(gridDim.x * gridDim.y, 6U);
    ++seen[((blockIdx.y * 2 + blockIdx.x) * 5 + threadIdx.y) * 4 + threadIdx.x];
  });
  EXPECT_THAT(seen, testing::Each(1));
}

TEST(Emulator, WarpsComputeWhatCUDASays) {
  launch(1, 40, [] {  // the second warp has eight lanes
    const unsigned lane = threadIdx.x % 32;
    const uint32_t mask = threadIdx.x < 32 ? ~0U : 0xffU;
    const unsigned lanes = threadIdx.x < 32 ? 32 : 8;
    EXPECT_EQ(__shfl_sync(mask, threadIdx.x * 2, 3), (threadIdx.x / 32 * 32 + 3) * 2);
    EXPECT_EQ(__shfl_xor_sync(mask, 0.5F + static_cast<float>(lane), 1), 0.5F + static_cast<float>(lane ^ 1));
    EXPECT_EQ(__shfl_up_sync(mask, lane, 2), lane < 2 ? lane : lane - 2);
    EXPECT_EQ(__shfl_up_sync(mask, lane, 1, 4), lane % 4 == 0 ? lane : lane - 1);
    EXPECT_EQ(__shfl_down_sync(mask, lane, 1, 8), lane % 8 == 7 ? lane : lane + 1);
    EXPECT_EQ(__shfl_sync(mask, lane, 1, 4), lane / 4 * 4 + 1);
    EXPECT_EQ(__ballot_sync(mask, lane % 2 == 0 ? 1 : 0), 0x55555555U & mask);
    EXPECT_EQ(__reduce_add_sync(mask, lane), lanes * (lanes - 1) / 2);
    EXPECT_EQ(__reduce_max_sync(mask, lane), lanes - 1);
    EXPECT_EQ(__reduce_min_sync(mask, lane + 4), 4U);
    EXPECT_EQ(__reduce_or_sync(mask, 1U << lane), mask);
    EXPECT_EQ(__any_sync(mask, lane == 7 ? 1 : 0), 1);
    const int threads = __syncthreads_count(threadIdx.x % 4 == 0 ? 1 : 0);
    EXPECT_EQ(threads, 10);
    EXPECT_EQ(__syncthreads_or(threadIdx.x == 39 ? 1 : 0), 1);
  });
  EXPECT_EQ(__byte_perm(0x33221100, 0x77665544, 0x7430), 0x77443300U);
  EXPECT_EQ(__umulhi(0xffffffff, 0xffffffff), 0xfffffffeU);
  EXPECT_EQ(__funnelshift_l(0x89abcdef, 0x01234567, 8), 0x23456789U);
  EXPECT_EQ(__funnelshift_l(0x89abcdef, 0x01234567, 32), 0x01234567U);
  EXPECT_EQ(__funnelshift_r(0x89abcdef, 0x01234567, 8), 0x6789abcdU);
  EXPECT_EQ(__funnelshift_r(0x89abcdef, 0x01234567, 0), 0x89abcdefU);
  EXPECT_EQ(__popcll(0xff000000000000ff), 16);
  EXPECT_EQ(__clz(0), 32);
  uint32_t word = 5;
  EXPECT_EQ(atomicMax(&word, 9), 5U);
  EXPECT_EQ(atomicCAS(&word, 8, 1), 9U);
  EXPECT_EQ(atomicCAS(&word, 9, 1), 9U);
  EXPECT_EQ(word, 1U);
}

}  // namespace
}  // namespace gradtune::emulator
