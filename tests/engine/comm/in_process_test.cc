// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/comm/in_process.h"

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

// The expected end of part `part` of the output of rank `to`, from the table: element i of rank r's part p is 100 r
// + 10 p + i.
TEST(MoveData, DoesWhatTheTableSaysOfEachKind) {
  constexpr size_t kRanks = 3, kCount = 2;
  using Root = core::StepTraits::Root;
  for (const core::StepTraits& traits : core::step_table()) {
    if (!traits.is_collective) continue;
    SCOPED_TRACE(traits.name);
    std::vector<std::vector<float>> in(kRanks), out(kRanks, std::vector<float>(kRanks * kCount, -1));
    std::vector<Collective> calls;
    for (size_t r = 0; r < kRanks; ++r) {
      for (size_t i = 0; i < kRanks * kCount; ++i) {
        in[r].push_back(static_cast<float>(100 * r + 10 * (i / kCount) + i % kCount));
      }
      if (traits.is_in_place) out[r] = in[r];
      calls.push_back({.kind = traits.kind,
                       .type = WireType::f32,
                       .in = traits.is_in_place ? nullptr : reinterpret_cast<std::byte*>(in[r].data()),
                       .out = reinterpret_cast<std::byte*>(out[r].data()),
                       .count = kCount,
                       .root = 1});
      check_legal(calls.back(), kRanks);
    }
    move_data(calls);
    for (size_t to = 0; to < kRanks; ++to) {
      if (traits.root == Root::receives && to != 1) continue;
      for (size_t part = 0; part < (traits.has_output_parts ? kRanks : 1); ++part) {
        for (size_t i = 0; i < kCount; ++i) {
          const auto given = [&](size_t from) {
            return static_cast<float>(100 * from + (traits.has_input_parts ? 10 * to : 0) + i);
          };
          const size_t from = traits.root == Root::sends ? 1 : part;
          EXPECT_EQ(out[to][part * kCount + i], traits.adds_up ? given(0) + given(1) + given(2) : given(from))
              << "rank " << to << ", part " << part;
        }
      }
    }
  }
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
  other = call;
  other.among = core::Subgroup{2, 1};
  EXPECT_THAT(first_difference(std::vector{call, other}), HasSubstr("all_reduce is among other ranks on rank 0 and"));
}

TEST(CheckLegal, SubgroupsOfAllGatherMakeUpTheGroup) {
  std::byte byte{};
  Collective call{.kind = Collective::Kind::all_gather, .in = &byte, .out = &byte, .count = 1};
  for (const core::Subgroup among : {core::Subgroup{2, 1}, {2, 3}, {3, 1}, {3, 2}, {6, 1}}) {
    call.among = among;
    EXPECT_NO_THROW(check_legal(call, 6));
  }
  for (const core::Subgroup among : {core::Subgroup{2, 2}, {4, 1}, {0, 1}, {2, 0}, {6, 6}, {-2, 1}}) {
    call.among = among;
    EXPECT_THROW(check_legal(call, 6), core::ProgramError) << among.size << " every " << among.stride;
  }
  call = {.kind = Collective::Kind::all_reduce, .out = &byte, .count = 1, .among = core::Subgroup{2, 1}};
  EXPECT_THROW(check_legal(call, 6), core::ProgramError);
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
  Collective among{.kind = Collective::Kind::all_gather, .type = WireType::f32, .count = 100};
  among.among = core::Subgroup{2, 4};
  EXPECT_EQ(link_bytes(among, 8), 400);
  call.kind = Collective::Kind::broadcast;
  EXPECT_EQ(link_bytes(call, 1), 0);
  EXPECT_EQ(link_bytes(call, 4), 400);
}

}  // namespace
}  // namespace gradtune::comm
