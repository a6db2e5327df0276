// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/core/strategy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "engine/core/rng.h"

namespace gradtune::core {
namespace {

using testing::HasSubstr;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};

GradientTable table_of(std::initializer_list<std::pair<int64_t, DType>> tensors) {
  GradientTable table;
  for (auto [numel, dtype] : tensors) {
    const std::string name = "t" + std::to_string(table.tensors.size());
    table.tensors.push_back({.name = name, .shape = {numel}, .numel = numel, .dtype = dtype});
  }
  return table;
}

GradientTable three() { return table_of({{100, DType::f32}, {50, DType::f32}, {30, DType::bf16}}); }

// {t0 and the start of t1}, {the rest of t1}, {t2}; the first bucket has two collectives.
Strategy example() {
  const Option two = two_step({"bf16", 0}, Place::device), one = plain_all_reduce();
  return {.buckets = {{{{0, 0, 100}, {1, 0, 20}}, two}, {{{1, 20, 30}}, one}, {{{2, 0, 30}}, one}},
          .order = {{0, 1}, {1, 0}, {0, 4}, {2, 0}},
          .in_flight = 2};
}

TEST(Matrices, AreTheWholeRowsOfTensorsOfSeveralDimensions) {
  GradientTable table = table_of({{24, DType::f32}, {5, DType::f32}, {60, DType::f32}});
  table.tensors[0].shape = {4, 6};
  table.tensors[2].shape = {3, 5, 4};
  EXPECT_EQ(matrices_of({.slices = {{0, 0, 24}, {1, 0, 5}, {2, 0, 60}}, .option = {}}, table),
            (std::vector<Matrix>{{0, 4, 6}, {29, 3, 20}}));
  // The whole rows in the slices.
  EXPECT_EQ(matrices_of({.slices = {{0, 5, 19}, {1, 0, 5}, {2, 0, 45}}, .option = {}}, table),
            (std::vector<Matrix>{{1, 3, 6}, {24, 2, 20}}));
  EXPECT_EQ(matrices_of({.slices = {{2, 1, 38}}, .option = {}}, table), std::vector<Matrix>());
}

TEST(Matrices, HaveTheRowsOfMemory) {
  GradientTable table = table_of({{24, DType::f32}, {60, DType::f32}});
  table.tensors[0].shape = {4, 6};
  table.tensors[0].memory_order = {1, 0};
  table.tensors[1].shape = {3, 5, 4};
  table.tensors[1].memory_order = {0, 2, 1};
  EXPECT_EQ(matrices_of({.slices = {{0, 0, 24}, {1, 0, 60}}, .option = {}}, table),
            (std::vector<Matrix>{{0, 6, 4}, {24, 3, 20}}));
  EXPECT_EQ(table.tensors[0].row_width(), 1);
  EXPECT_EQ(table.tensors[1].row_width(), 20);
}

TEST(Matrices, AreCutAtRows) {
  const Matrix matrices[] = {{3, 4, 5}, {30, 2, 10}};
  EXPECT_EQ(matrices_within(matrices, 0, 50), (std::vector<Matrix>{{3, 4, 5}, {30, 2, 10}}));
  EXPECT_EQ(matrices_within(matrices, 4, 40), (std::vector<Matrix>{{4, 3, 5}, {26, 1, 10}}));
  EXPECT_EQ(matrices_within(matrices, 8, 9), (std::vector<Matrix>{{0, 1, 5}}));
  EXPECT_EQ(matrices_within(matrices, 9, 8), std::vector<Matrix>());
  EXPECT_EQ(matrices_within(matrices, 23, 7), std::vector<Matrix>());
  EXPECT_EQ(matrices_within(matrices, 50, 100), std::vector<Matrix>());
  // Every row is in one of two parts, unless the cut goes through it.
  for (int64_t cut = 0; cut <= 50; ++cut) {
    int64_t rows = 0;
    for (const Matrix& matrix : matrices_within(matrices, 0, cut)) rows += matrix.rows;
    for (const Matrix& matrix : matrices_within(matrices, cut, 50 - cut)) rows += matrix.rows;
    const bool through = (cut > 3 && cut < 23 && (cut - 3) % 5 != 0) || (cut > 30 && cut < 50 && cut % 10 != 0);
    EXPECT_EQ(rows, through ? 5 : 6) << cut;
  }
}

template <typename Change>
std::string error_after(Change change) {
  Strategy strategy = example();
  change(strategy);
  const Status status = validate(strategy, three());
  if (status.ok()) return "";
  EXPECT_EQ(status.error().code, Error::Code::mismatch);
  return status.error().message;
}

TEST(Validate, AcceptsWhatCoversTheTable) {
  EXPECT_TRUE(validate(example(), three()).ok());
  EXPECT_TRUE(validate(Strategy{.buckets = {}, .order = {}, .in_flight = 1}, GradientTable{}).ok());
}

TEST(Validate, NamesGaps) {
  EXPECT_THAT(error_after([](Strategy& s) { s.buckets[0].slices[1].length = 19; }),
              HasSubstr("bucket 1: slice [20, +30) of t1 does not follow the slice before it"));
  EXPECT_THAT(error_after([](Strategy& s) { s.buckets[1].slices[0] = {1, 21, 29}; }), HasSubstr("[21, +29) of t1"));
  EXPECT_THAT(error_after([](Strategy& s) { s.buckets[1].slices[0].length = 29; }),
              HasSubstr("no bucket holds element 49 of t1"));
  EXPECT_THAT(error_after([](Strategy& s) {
                s.buckets.pop_back();
                s.order.pop_back();
              }),
              HasSubstr("no bucket holds element 0 of t2"));
  EXPECT_THAT(error_after([](Strategy& s) { s.buckets[0].slices.erase(s.buckets[0].slices.begin()); }),
              HasSubstr("bucket 0: slice [0, +20) of t1"));
}

TEST(Validate, NamesOverlaps) {
  EXPECT_THAT(error_after([](Strategy& s) { s.buckets[1].slices[0] = {1, 19, 31}; }), HasSubstr("[19, +31) of t1"));
  EXPECT_THAT(error_after([](Strategy& s) { s.buckets[0].slices[0].length = 101; }),
              HasSubstr("leaves the tensor of 100 elements"));
  EXPECT_THAT(error_after([](Strategy& s) { s.buckets[0].slices[0].length = INT64_MAX; }), HasSubstr("bucket 0"));
  EXPECT_THAT(error_after([](Strategy& s) { s.buckets[2].slices.push_back({2, 0, 30}); }), HasSubstr("bucket 2"));
}

TEST(Validate, NamesSlicesThatCannotBe) {
  EXPECT_THAT(error_after([](Strategy& s) { s.buckets[0].slices.clear(); }), HasSubstr("bucket 0 has no slices"));
  EXPECT_THAT(error_after([](Strategy& s) { s.buckets[2].slices[0].tensor = 3; }), HasSubstr("names tensor 3 of 3"));
  EXPECT_THAT(error_after([](Strategy& s) { s.buckets[2].slices[0].tensor = -1; }), HasSubstr("names tensor -1 of 3"));
  EXPECT_THAT(error_after([](Strategy& s) { s.buckets[0].slices[0].offset = -1; }), HasSubstr("[-1, +100) of t0"));
  EXPECT_THAT(error_after([](Strategy& s) { s.buckets[0].slices[0].length = 0; }), HasSubstr("[0, +0) of t0"));
}

TEST(Validate, NamesMixedDtypes) {
  EXPECT_THAT(error_after([](Strategy& s) {
                s.buckets[1].slices.push_back({2, 0, 30});
                s.buckets.pop_back();
                s.order.pop_back();
              }),
              HasSubstr("bucket 1 mixes dtypes at t2"));
}

TEST(Validate, NamesMistakesInTheOrder) {
  EXPECT_THAT(error_after([](Strategy& s) { s.order.pop_back(); }), HasSubstr("the order has 3 of 4 collectives"));
  EXPECT_THAT(error_after([](Strategy& s) {
                s.order.push_back({2, 0});
              }),
              HasSubstr("step 0 of bucket 2, which is not its next collective"));
  EXPECT_THAT(error_after([](Strategy& s) { std::swap(s.order[0], s.order[2]); }), HasSubstr("step 1 of bucket 0"));
  EXPECT_THAT(error_after([](Strategy& s) { s.order[0].step = 0; }),
              HasSubstr("step 0 of bucket 0"));  // an encode
  EXPECT_THAT(error_after([](Strategy& s) { s.order[3].step = 1; }), HasSubstr("step 1 of bucket 2"));
  EXPECT_THAT(error_after([](Strategy& s) { s.order[3].step = -1; }), HasSubstr("step -1 of bucket 2"));
  EXPECT_THAT(error_after([](Strategy& s) { s.order[3].bucket = 3; }), HasSubstr("the order names bucket 3 of 3"));
  EXPECT_THAT(error_after([](Strategy& s) { s.in_flight = 0; }), HasSubstr("in_flight is 0"));
}

TEST(Hash, TellsStrategiesApart) {
  std::set<uint64_t> hashes = {hash(example())};
  const auto expect_new = [&](auto change) {
    Strategy strategy = example();
    change(strategy);
    EXPECT_TRUE(hashes.insert(hash(strategy)).second);
  };
  expect_new([](Strategy& s) { s.in_flight = 1; });
  expect_new([](Strategy& s) { s.buckets[0].slices[1].length = 19; });
  expect_new([](Strategy& s) { s.buckets[0].slices[1].offset = 1; });
  expect_new([](Strategy& s) { s.buckets[2].slices[0].tensor = 1; });
  expect_new([](Strategy& s) { s.buckets[0].option.steps[0].place = Place::host; });
  expect_new([](Strategy& s) { s.buckets[0].option.codecs[0] = {"topk", 0.01}; });
  expect_new([](Strategy& s) { s.buckets[0].option.codecs[0] = {"topk", 0.02}; });
  expect_new([](Strategy& s) { std::swap(s.order[1], s.order[2]); });
  expect_new([](Strategy& s) { s.buckets[1].slices.swap(s.buckets[2].slices); });
  EXPECT_EQ(hash(example()), hash(example()));
}

TEST(StaggeredOrder, LaterCollectivesGoOutLagBucketsBehind) {
  const Option two = two_step({"bf16", 0}, Place::device);  // collectives at steps 1 and 4
  const std::vector<Bucket> buckets(3, Bucket{{}, two});
  EXPECT_EQ(staggered_order(buckets, 1), (std::vector<Issue>{{0, 1}, {1, 1}, {0, 4}, {2, 1}, {1, 4}, {2, 4}}));
  EXPECT_EQ(staggered_order(buckets, 2), (std::vector<Issue>{{0, 1}, {1, 1}, {2, 1}, {0, 4}, {1, 4}, {2, 4}}));
  EXPECT_EQ(staggered_order(buckets, 0), (std::vector<Issue>{{0, 1}, {0, 4}, {1, 1}, {1, 4}, {2, 1}, {2, 4}}));
  EXPECT_EQ(staggered_order({3, Bucket{{}, plain_all_reduce()}}), (std::vector<Issue>{{0, 0}, {1, 0}, {2, 0}}));
  EXPECT_EQ(staggered_order({}), std::vector<Issue>{});
}

TEST(StaggeredOrder, IsValidForAnyMixOfPrograms) {
  Rng rng(1);
  const Option options[] = {plain_all_reduce(), encoded_all_reduce({"bf16", 0}, Place::host),
                            two_step({"bf16", 0}, Place::device), gather_payloads({"topk", 0.01}, Place::host)};
  for (int round = 0; round < 100; ++round) {
    GradientTable table;
    Strategy strategy;
    for (int32_t b = 0; b < static_cast<int32_t>(1 + rng.below(10)); ++b) {
      table.tensors.push_back({.name = std::to_string(b), .shape = {1}, .numel = 1});
      strategy.buckets.push_back({{{b, 0, 1}}, options[rng.below(4)]});
    }
    strategy.order = staggered_order(strategy.buckets, static_cast<int>(rng.below(4)));
    EXPECT_TRUE(validate(strategy, table).ok());
  }
}

int64_t bytes_of(const std::vector<Slice>& slices, const GradientTable& table) {
  int64_t bytes = 0;
  for (const Slice& slice : slices) {
    bytes += slice.length * bytes_per_element(table.tensors[static_cast<size_t>(slice.tensor)].dtype);
  }
  return bytes;
}

GradientTable random_table(uint64_t seed, bool one_dtype) {
  Rng rng(seed);
  GradientTable table;
  for (uint64_t t = 0; t < 1 + rng.below(30); ++t) {
    const auto numel = static_cast<int64_t>(rng.below(10) == 0 ? rng.below(100000) : rng.below(300));
    table.tensors.push_back({.name = std::to_string(t),
                             .shape = {numel},
                             .numel = numel,
                             .dtype = one_dtype ? DType::f32 : kDTypes[rng.below(3)]});
  }
  return table;
}

TEST(Cut, CoversTheTable) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const GradientTable table = random_table(seed, seed % 2 == 0);
    for (bool split : {false, true}) {
      const Strategy strategy = uniform(cut(table, 64, 1000, split), plain_all_reduce(), 2);
      const Status status = validate(strategy, table);
      EXPECT_TRUE(status.ok()) << seed << ": " << (status.ok() ? "" : status.error().message);
    }
  }
}

TEST(Cut, WithSplitEveryBucketFits) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const GradientTable table = random_table(seed, false);
    const auto buckets = cut(table, 64, 1000, true);
    for (size_t b = 0; b < buckets.size(); ++b) {
      EXPECT_LE(bytes_of(buckets[b], table), b == 0 ? 64 : 1000);
    }
  }
  // Every bucket is as large as it has to be.
  const GradientTable one = table_of({{100000, DType::f32}});
  const auto buckets = cut(one, 64, 1000, true);
  EXPECT_EQ(buckets.size(), 1U + (400000 - 64 + 999) / 1000);
  for (size_t b = 1; b + 1 < buckets.size(); ++b) EXPECT_EQ(bytes_of(buckets[b], one), 1000);
}

TEST(Cut, WithoutSplitABucketEndsWithTheTensorThatFillsIt) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const GradientTable table = random_table(seed, true);
    const auto buckets = cut(table, 64, 1000, false);
    for (size_t b = 0; b < buckets.size(); ++b) {
      const int64_t limit = b == 0 ? 64 : 1000;
      std::vector<Slice> before = buckets[b];
      for (const Slice& slice : before) {
        EXPECT_EQ(slice.offset, 0);
        EXPECT_EQ(slice.length, table.tensors[static_cast<size_t>(slice.tensor)].numel);
      }
      const bool last = b + 1 == buckets.size();
      EXPECT_TRUE(last || bytes_of(before, table) + 4 > limit);
      before.pop_back();
      EXPECT_LE(bytes_of(before, table) + 4, limit);
    }
  }
}

TEST(Cut, OfAnExampleAsDdpDoesIt) {
  const GradientTable table =
      table_of({{10, DType::f32}, {20, DType::f32}, {1, DType::f32}, {1000, DType::f32}, {5, DType::f32}});
  EXPECT_EQ(cut(table, 100, 400, false),
            (std::vector<std::vector<Slice>>{{{0, 0, 10}, {1, 0, 20}}, {{2, 0, 1}, {3, 0, 1000}}, {{4, 0, 5}}}));
  EXPECT_EQ(cut(table, 100, 4000, true),
            (std::vector<std::vector<Slice>>{
                {{0, 0, 10}, {1, 0, 15}}, {{1, 15, 5}, {2, 0, 1}, {3, 0, 994}}, {{3, 994, 6}, {4, 0, 5}}}));
}

TEST(Cut, KeepsDtypesApart) {
  const GradientTable table = table_of({{10, DType::f32}, {10, DType::bf16}, {10, DType::f32}, {10, DType::f16}});
  EXPECT_EQ(cut(table, 1000, 1000, true),
            (std::vector<std::vector<Slice>>{{{0, 0, 10}, {2, 0, 10}}, {{1, 0, 10}}, {{3, 0, 10}}}));
}

TEST(NeededFidelity, IsThatOfTheMostLossyCompressorInAnyBucket) {
  std::vector<CompressorTraits> known(3);
  const std::pair<std::string_view, Fidelity> rows[] = {
      {"none", Fidelity::exact}, {"bf16", Fidelity::half}, {"topk", Fidelity::lossy}};
  for (size_t row = 0; row < 3; ++row) std::tie(known[row].name, known[row].fidelity) = rows[row];
  Strategy strategy = example();
  EXPECT_EQ(needed_fidelity(strategy, known), Fidelity::half);
  strategy.buckets[1].option.codecs = {{.name = "none"}, {.name = "topk"}};
  EXPECT_EQ(needed_fidelity(strategy, known), Fidelity::lossy);
  for (Bucket& bucket : strategy.buckets) bucket.option = plain_all_reduce();
  EXPECT_EQ(needed_fidelity(strategy, known), Fidelity::exact);
  strategy.buckets[2].option.codecs = {{.name = "unheard"}};
  EXPECT_THROW(needed_fidelity(strategy, known), ProgramError);
}

TEST(Uniform, GivesEveryBucketTheOption) {
  const GradientTable table = table_of({{1000, DType::f32}});
  const Option option = two_step({"bf16", 0}, Place::host);
  const Strategy strategy = uniform(cut(table, 1000, 1000, true), option, 3);
  EXPECT_EQ(strategy.in_flight, 3);
  EXPECT_EQ(strategy.buckets.size(), 4U);
  for (const Bucket& bucket : strategy.buckets) EXPECT_EQ(bucket.option, option);
  EXPECT_EQ(strategy.order, staggered_order(strategy.buckets));
  EXPECT_TRUE(validate(strategy, table).ok());
  EXPECT_EQ(numel(strategy.buckets[0]), 250);
}

TEST(Describe, NamesRunsOfAlikeBuckets) {
  EXPECT_EQ(describe(example(), three()),
            "3 buckets, 2 collectives in flight\n"
            "  0: t0 .. t1, 120 elements: bf16: encode@device all_to_all decode@device "
            "encode@device all_gather "
            "decode@device\n"
            "  1-2: t1 .. t2, 60 elements: all_reduce\n");
}

TEST(Flow, HasTheCollectivesOfTwoBucketsInFlight) {
  const CompressorSpec half{"half", 0};
  Strategy strategy;
  set_default_flow(strategy);
  EXPECT_EQ(strategy.in_flight, 1);
  strategy.buckets = {{{{0, 0, 10}}, plain_all_reduce()}, {{{1, 0, 10}}, two_step(half, Place::device)}};
  set_default_flow(strategy);
  EXPECT_EQ(strategy.in_flight, 4);
  EXPECT_EQ(strategy.order, staggered_order(strategy.buckets));
}

TEST(Due, IsPrintedHashedAndParsed) {
  const GradientTable table{{{.name = "w", .shape = {8}, .numel = 8}}};
  Strategy strategy = uniform({{{0, 0, 8}}}, plain_all_reduce(), 1);
  const uint64_t before = hash(strategy);
  EXPECT_EQ(describe(strategy, table).find("due"), std::string::npos);
  strategy.buckets[0].due = Due::forward;
  EXPECT_NE(hash(strategy), before);
  EXPECT_THAT(describe(strategy, table), testing::HasSubstr("all_reduce, due at the next forward pass"));
  for (const Due due : {Due::backward, Due::forward}) EXPECT_EQ(parse_due(to_string(due)).value(), due);
  EXPECT_EQ(parse_due("later").error().message, "\"later\" is unknown; known are backward and forward");
}

}  // namespace
}  // namespace gradtune::core
