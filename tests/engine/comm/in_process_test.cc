// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/comm/in_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "engine/core/float16.h"

namespace gradtune::comm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

template <typename T>
std::vector<Collective> reductions(std::vector<std::vector<T>>& ranks, WireType type) {
  std::vector<Collective> calls;
  for (std::vector<T>& values : ranks) {
    calls.push_back({.kind = Collective::Kind::all_reduce,
                     .type = type,
                     .out = reinterpret_cast<std::byte*>(values.data()),
                     .count = static_cast<int64_t>(values.size())});
  }
  return calls;
}

TEST(MoveData, AddsInTheOrderOfRanks) {
  // (1e8 + 1) - 1e8 is 0 in float, 1 + (1e8 - 1e8) is 1.
  std::vector<std::vector<float>> ranks = {{1e8F, 1}, {1, 1e8F}, {-1e8F, -1e8F}};
  move_data(reductions(ranks, WireType::f32));
  for (const auto& values : ranks) EXPECT_THAT(values, ElementsAre(0, 0));

  ranks = {{1e8F, 1e8F}, {-1e8F, -1e8F}, {1, 2}};
  move_data(reductions(ranks, WireType::f32));
  for (const auto& values : ranks) EXPECT_THAT(values, ElementsAre(1, 2));
}

TEST(MoveData, RoundsSixteenBitSumsOnce) {
  // With 8 bits of mantissa 256 + 1 rounds to 256, again and again; the sum 258 is a bfloat16.
  const uint16_t large = core::narrow_bf16(256), one = core::narrow_bf16(1);
  std::vector<std::vector<uint16_t>> ranks = {{large}, {one}, {one}};
  move_data(reductions(ranks, WireType::bf16));
  for (const auto& values : ranks) EXPECT_EQ(core::widen_bf16(values[0]), 258);

  // With 11 bits, 2048 + 1 rounds to 2048.
  ranks = {{core::narrow_f16(2048)}, {core::narrow_f16(1)}, {core::narrow_f16(1)}};
  move_data(reductions(ranks, WireType::f16));
  for (const auto& values : ranks) EXPECT_EQ(core::widen_f16(values[0]), 2050);
}

TEST(FirstDifference, NamesWhatDiffersAndWhere) {
  const Collective call{.kind = Collective::Kind::all_reduce, .type = WireType::f32, .count = 3};
  EXPECT_EQ(first_difference(std::vector{call, call, call}), "");

  Collective other = call;
  other.count = 4;
  EXPECT_EQ(first_difference(std::vector{call, call, other}), "all_reduce has 3 and 4 elements on rank 0 and rank 2");
  other = call;
  other.kind = Collective::Kind::broadcast;
  EXPECT_THAT(first_difference(std::vector{call, other}), HasSubstr("all_reduce and broadcast"));
  other = call;
  other.type = WireType::f16;
  EXPECT_THAT(first_difference(std::vector{call, other}), HasSubstr("types"));
  other = call;
  other.reduction = Collective::Reduction::max;
  EXPECT_THAT(first_difference(std::vector{call, other}), HasSubstr("reductions"));
  other = call;
  other.root = 1;
  EXPECT_THAT(first_difference(std::vector{call, other}), HasSubstr("roots"));
}

TEST(BytesSentPerRank, AreThoseOfRingAndPairwiseAlgorithms) {
  Collective call{.kind = Collective::Kind::all_reduce, .type = WireType::f32, .count = 100};
  EXPECT_EQ(link_bytes(call, 1), 0);
  EXPECT_EQ(link_bytes(call, 2), 400);
  EXPECT_EQ(link_bytes(call, 4), 600);
  for (const auto kind : {Collective::Kind::all_gather, Collective::Kind::all_to_all}) {
    call.kind = kind;
    EXPECT_EQ(link_bytes(call, 1), 0);
    EXPECT_EQ(link_bytes(call, 4), 1200);
  }
  call.kind = Collective::Kind::broadcast;
  EXPECT_EQ(link_bytes(call, 1), 0);
  EXPECT_EQ(link_bytes(call, 4), 400);
}

}  // namespace
}  // namespace gradtune::comm
