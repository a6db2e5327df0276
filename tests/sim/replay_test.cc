// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The same seed gives the same job: every event at the same time, every decision, every bit.
#include <gtest/gtest.h>

#include <set>

#include "tests/sim/random_job.h"

namespace gradtune::sim {
namespace {

TEST(Replay, SameSeedGivesTheSameTraceCommandsBitsAndExportedStrategy) {
  std::set<uint64_t> traces;
  constexpr uint64_t kSeeds = 60;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const int size = 2 + static_cast<int>(seed % 3);
    Job once(random_job(seed, size)), again(random_job(seed, size));
    once.run();
    again.run();
    EXPECT_EQ(once.world().trace_hash(), again.world().trace_hash()) << "seed " << seed;
    for (int r = 0; r < size; ++r) {
      EXPECT_EQ(once.rank(r).steps(), again.rank(r).steps()) << "seed " << seed << ", rank " << r;
      EXPECT_EQ(once.rank(r).exported(), again.rank(r).exported()) << "seed " << seed << ", rank " << r;
    }
    traces.insert(once.world().trace_hash());
  }
  EXPECT_EQ(traces.size(), kSeeds) << "another seed gives another job";
}

// Times may differ, bits may not: the training does not depend on the order of completions.
TEST(Replay, TheOrderOfCompletionsChangesNoBit) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    JobOptions options = random_job(seed, 3);
    Job smooth([&] {
      JobOptions calm = options;
      calm.world.jitter_ns = calm.world.stall_ns = 0;
      return calm;
    }());
    Job rough(options);
    smooth.run();
    rough.run();
    EXPECT_NE(smooth.world().trace_hash(), rough.world().trace_hash());
    for (int r = 0; r < 3; ++r) {
      ASSERT_EQ(smooth.rank(r).steps().size(), rough.rank(r).steps().size());
      for (size_t s = 0; s < rough.rank(r).steps().size(); ++s) {
        ASSERT_EQ(smooth.rank(r).steps()[s].digest, rough.rank(r).steps()[s].digest)
            << "seed " << seed << ", step " << s;
      }
    }
  }
}

}  // namespace
}  // namespace gradtune::sim
