// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Buckets that arrive during the next forward pass, on simulated ranks: the bits are the same as without them, and
// the step ends earlier.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/sim/job.h"

namespace gradtune::sim {
namespace {

// Two large tensors on a slow link; the one that is ready first is read last.
JobOptions slow_job(const std::string& option, bool is_late) {
  core::GradientTable table = exec::make_table({{40'000, core::DType::f32}, {20'000, core::DType::f32}});
  table.forward_us = 1;
  table.tensors[0].read_us = 0.9;
  table.tensors[1].read_us = 0;
  JobOptions job{.world = {.size = 2, .seed = 7, .rank = {.bytes_per_second = 20e6}}};
  job.rank.table = table;
  job.rank.executor.backward_ns = 2'000'000;
  job.rank.forward_ns = 8'000'000;
  job.rank.steps = 6;
  core::Strategy strategy = exec::make_strategy(table, option, 40'000, 2);
  // The bucket that is read first comes first.
  strategy.order.clear();
  for (size_t b = strategy.buckets.size(); b-- > 0;) {
    const std::vector<core::Step>& steps = strategy.buckets[b].option.steps;
    for (size_t s = 0; s < steps.size(); ++s) {
      if (core::is_collective(steps[s].kind))
        strategy.order.push_back({static_cast<int32_t>(b), static_cast<int32_t>(s)});
    }
    if (is_late && strategy.buckets[b].slices[0].tensor == 0) strategy.buckets[b].due = core::Due::forward;
  }
  job.rank.start = {{strategy, "slow"}};
  job.rank.gradient = [table](int rank, int64_t step) {
    core::Rng values(static_cast<uint64_t>(10 * step + rank));
    return exec::random_gradient(table, values);
  };
  return job;
}

TEST(LateBucketsOfSimulatedRanks, GiveTheSameBitsAndHideBehindForward) {
  for (const std::string option :
       {"all_reduce", "bf16: encode@device all_reduce decode@device",
        "topk:0.1: encode@device all_gather decode@device", "topk:0.1: encode@host all_gather decode@host"}) {
    std::vector<std::vector<uint64_t>> digests;
    std::vector<int64_t> ended_ns;
    for (const bool is_late : {false, true}) {
      Job job(slow_job(option, is_late));
      job.run();
      std::vector<uint64_t>& seen = digests.emplace_back();
      for (int r = 0; r < job.size(); ++r) {
        ASSERT_FALSE(job.rank(r).error()) << job.rank(r).error()->message;
        ASSERT_EQ(job.rank(r).steps().size(), 6U);
        for (const StepRecord& record : job.rank(r).steps()) seen.push_back(record.digest);
      }
      ended_ns.push_back(job.rank(0).ended_ns());
    }
    EXPECT_EQ(digests[0], digests[1]) << option;
    EXPECT_LT(ended_ns[1], ended_ns[0]) << option;
  }
}

}  // namespace
}  // namespace gradtune::sim
