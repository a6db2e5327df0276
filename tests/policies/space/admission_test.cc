// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/space/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/policies/jobs.h"

namespace gradtune::policies {
namespace {

const core::CompressorSpec kTopk{"topk", 0.01}, kBf16{"bf16"};

// Two nodes of two ranks, workers on the host, everything allowed: all rules admit the whole tree.
TreeJob open_job() {
  return {.ranks = {.size = 4, .local_size = 2},
          .host_threads = 2,
          .fidelity = core::Fidelity::lossy,
          .codecs = {kBf16},
          .traits = testing::known_traits(),
          .numel = 1'000'000};
}

struct Case {
  const char* rule;
  TreeJob job;
  size_t left;  // number of admitted options
};

// The tree and its extension with one codec have 4341 + 244 programs, of which 63 + 4 are flat.
constexpr size_t kFlat = 63 + 4, kLevels = 4278 + 240, kAll = kFlat + kLevels;

std::vector<Case> cases() {
  std::vector<Case> all;
  all.push_back({"topology", open_job(), kFlat});
  all.back().job.ranks = {.size = 4};
  // One place: the tree has 174. The extension has 1 flat, and with T2 = 3, 2 * 3 + 2 * 3.
  all.push_back({"places", open_job(), 174 + 1 + 12});
  all.back().job.host_threads = 0;
  all.push_back({"compressor", open_job(), 4341});
  all.back().job.codecs = {kTopk};
  // Without a compressor: all_reduce and two pairs. With levels: two pairs inside a node around all_reduce and two
  // pairs.
  all.push_back({"fidelity", open_job(), 3 + 2 * 3});
  all.back().job.fidelity = core::Fidelity::exact;
  // Inside a node: nothing or two pairs around a flat program, at either of two places, 2 * (3 + 2 * 9). The
  // extension has 2 * 2.
  all.push_back({"inside", open_job(), kFlat + 2 * (3 + 2 * 9) + 2 * 2});
  all.back().job.plain_inside = true;
  all.push_back({"memory", open_job(), 3 + 2 * 3});
  all.back().job.memory_bytes = 100;
  return all;
}

TEST(Narrowing, AnOpenJobHasTheWholeTree) {
  EXPECT_EQ(kAll, tree_options(open_job()).size());
  EXPECT_EQ(admission_rules().size(), cases().size() + 1) << "every rule has a case; the allow-list has its own";
}

TEST(Narrowing, EachRuleLeavesWhatItSaysAndHasASwitch) {
  for (const Case& each : cases()) {
    EXPECT_EQ(each.left, tree_options(each.job).size()) << each.rule;
    EXPECT_EQ(kAll, tree_options(each.job, {each.rule}).size()) << each.rule;
  }
}

TEST(Narrowing, TheAllowListIsWhatMayBeUsed) {
  TreeJob job = open_job();
  const core::Option topk = core::gather_payloads(kTopk, core::Place::device);
  EXPECT_FALSE(admits(topk, job));
  EXPECT_TRUE(admits(topk, job, {"allow-list"}));
  job.codecs.push_back(kTopk);
  EXPECT_TRUE(admits(topk, job));
}

TEST(Narrowing, PairsOfCodecsGoWhereNodesAreInside) {
  TreeJob job = open_job();
  job.host_threads = 0;
  const size_t one = tree_options(job).size();
  job.codecs.push_back(kTopk);
  size_t mixed = 0, same = 0;
  for (const core::Option& option : tree_options(job)) {
    mixed += option.codecs.size() == 2;
    same += option.codecs.size() < 2;
  }
  EXPECT_GT(mixed, 0);
  // Plain programs are counted once; topk has no part in the extension.
  EXPECT_EQ(2 * one - 9 - 13, same);
}

TEST(Narrowing, MemoryGrowsWithTheRanksThatPayloadsAreGatheredFrom) {
  TreeJob job = open_job();
  const core::Option gather = core::gather_payloads(kBf16, core::Place::device);
  job.memory_bytes = (1 + 4) * 2'000'000;
  EXPECT_TRUE(admits(gather, job));
  job.ranks = {.size = 5};
  EXPECT_FALSE(admits(gather, job));
  EXPECT_TRUE(admits(core::two_step(kBf16, core::Place::device), job)) << "a shard is gathered, not the whole";
}

TEST(Narrowing, MemoryHoldsTheResidualsOfAllElements) {
  TreeJob job = open_job();
  job.ranks = {.size = 2};
  job.codecs = {kBf16, kTopk};
  const core::Option half = core::gather_payloads(kBf16, core::Place::device),
                     lossy = core::gather_payloads(kTopk, core::Place::device);
  job.memory_bytes = 3 * 2'000'000;
  EXPECT_TRUE(admits(half, job));
  EXPECT_FALSE(admits(lossy, job)) << "payloads are small, but not what they leave behind";
  job.memory_bytes = 8 * 1'000'000 + 3 * 80'032;
  EXPECT_TRUE(admits(lossy, job));
  job.memory_bytes -= 1000;
  EXPECT_FALSE(admits(lossy, job));
}

TEST(Narrowing, ARunningJobPlansWithinItsMemory) {
  Knowledge job = testing::knowledge_of(testing::reference_table(), 2, core::Fidelity::lossy);
  const core::Option lossy = core::gather_payloads(kTopk, core::Place::device);
  EXPECT_THAT(admitted_options(job), ::testing::Contains(lossy));
  job.memory_bytes = 7 * job.table.numel();
  EXPECT_THAT(admitted_options(job), ::testing::Not(::testing::Contains(lossy)));
  EXPECT_THAT(admitted_options(job), ::testing::Contains(core::encoded_all_reduce(kBf16, core::Place::device)));
}

}  // namespace
}  // namespace gradtune::policies
