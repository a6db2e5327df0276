// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/space/decision_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tests/policies/jobs.h"

namespace gradtune::policies {
namespace {

using core::Place;
using ::testing::Contains;

constexpr Place kBoth[] = {Place::device, Place::host};
constexpr std::span<const Place> kDevice{kBoth, 1};

const core::CompressorSpec kTopk{"topk", 0.01}, kBf16{"bf16"};

std::set<std::string> printed(const std::vector<Steps>& programs) {
  std::set<std::string> all;
  for (const Steps& steps : programs) all.insert(to_string(with_codecs(steps, kTopk, kTopk)));
  return all;
}

// Espresso's paper prints 4341 for two devices; the other counts follow from its grammar.
TEST(DecisionTree, HasAsManyDifferentProgramsAsThePublishedOne) {
  EXPECT_EQ(63, printed(flat_programs(kBoth)).size());
  EXPECT_EQ(4278, printed(hierarchical_programs(kBoth)).size());
  EXPECT_EQ(12, printed(flat_programs(kDevice)).size());
  EXPECT_EQ(162, printed(hierarchical_programs(kDevice)).size());
  std::vector<Steps> all = flat_programs(kBoth);
  const std::vector<Steps> levels = hierarchical_programs(kBoth);
  all.insert(all.end(), levels.begin(), levels.end());
  EXPECT_EQ(4341, all.size());
  EXPECT_EQ(4341, printed(all).size());
}

TEST(DecisionTree, SummablePayloadsAreAnExtensionOfTheirOwn) {
  EXPECT_EQ(4, printed(flat_summing_programs(kBoth)).size());
  // T2 has 12 programs: two first steps inside, without or with a codec, and an encode before the sum.
  EXPECT_EQ(2 * (2 * 12) + 2 * (2 * 2 * 2 * 12), printed(hierarchical_summing_programs(kBoth)).size());
  const std::set<std::string> tree = printed(hierarchical_programs(kBoth));
  for (const std::string& program : printed(hierarchical_summing_programs(kBoth))) EXPECT_FALSE(tree.contains(program));
}

TEST(DecisionTree, HoldsTheFamiliesThatHaveNames) {
  const std::set<std::string> flat = printed(flat_programs(kBoth)), levels = printed(hierarchical_programs(kBoth));
  EXPECT_THAT(flat, Contains(to_string(core::plain_all_reduce())));
  EXPECT_THAT(flat, Contains(to_string(core::two_step(kTopk, Place::host))));
  EXPECT_THAT(flat, Contains(to_string(core::gather_payloads(kTopk, Place::device))));
  EXPECT_THAT(flat, Contains("reduce_scatter all_gather"));
  EXPECT_THAT(flat, Contains("topk:0.01: encode@device gather broadcast decode@host"));
  EXPECT_THAT(levels, Contains("reduce_scatter@intra all_reduce@inter all_gather@intra"));
  EXPECT_THAT(levels, Contains("reduce@intra reduce@inter broadcast@inter broadcast@intra"));
  EXPECT_THAT(levels, Contains("topk:0.01: reduce_scatter@intra encode@device all_gather@inter decode@device "
                               "all_gather@intra"));
  EXPECT_THAT(levels, Contains("topk:0.01: encode@device all_to_all@intra all_to_all@inter all_gather@inter "
                               "all_gather@intra decode@host"));
}

TEST(DecisionTree, ProgramsArePrintedSoThatTheyCanBeReadAgain) {
  for (const Steps& steps : hierarchical_programs(kDevice)) {
    const core::Option option = with_codecs(steps, kBf16, kTopk);
    const auto read = core::parse_option(to_string(option), testing::known_traits());
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(option, read.value());
  }
}

TEST(DecisionTree, WhatStaysInANodeMayHaveAnotherCodecThanWhatLeavesIt) {
  const auto option = [](const char* text, const core::CompressorSpec& inside) {
    const Steps steps = core::parse_option(text, testing::known_traits()).value().steps;
    return to_string(with_codecs(steps, inside, kTopk));
  };
  const char* const both =
      "bf16: encode@device all_to_all@intra decode@device encode@device all_gather@inter decode@device encode@device "
      "all_gather@intra decode@device";
  EXPECT_EQ(
      "bf16,topk:0.01: encode@device all_to_all@intra decode@device encode@device#1 all_gather@inter "
      "decode@device#1 encode@device all_gather@intra decode@device",
      option(both, kBf16));
  EXPECT_EQ(
      "topk:0.01: encode@device all_to_all@intra decode@device encode@device all_gather@inter decode@device "
      "encode@device all_gather@intra decode@device",
      option(both, kTopk));
  EXPECT_EQ("topk:0.01: encode@device all_to_all@intra all_gather@inter all_gather@intra decode@device",
            option("bf16: encode@device all_to_all@intra all_gather@inter all_gather@intra decode@device", kBf16));
  EXPECT_EQ("reduce_scatter@intra all_reduce@inter all_gather@intra",
            option("reduce_scatter@intra all_reduce@inter all_gather@intra", kBf16));
}

}  // namespace
}  // namespace gradtune::policies
