// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests buckets that work on lists of rows: every compressor that takes rows in every program that only exchanges
// payloads, on any number of ranks. The result is the average of dense gradients in the order of additions that is
// stated here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/core/rng.h"
#include "tests/engine/exec/fleet.h"
#include "tests/engine/exec/order_of_sums.h"
#include "tests/suites/communicator_ranks.h"

namespace gradtune::exec {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

// A vector, a matrix, and another one.
core::GradientTable job(int64_t rows, int64_t width) {
  core::GradientTable table;
  table.tensors.push_back({.name = "bias", .shape = {7}, .numel = 7});
  table.tensors.push_back({.name = "table", .shape = {rows, width}, .numel = rows * width});
  table.tensors.push_back({.name = "last", .shape = {5, 3}, .numel = 15});
  return table;
}
constexpr int32_t kTable = 1;

core::Strategy strategy(const core::GradientTable& table, const std::string& option) {
  std::vector<std::vector<core::Slice>> buckets;
  for (int32_t t = 0; t < 3; ++t) buckets.push_back({{t, 0, table.tensors[static_cast<size_t>(t)].numel}});
  core::Strategy strategy = core::uniform(buckets, core::plain_all_reduce(), 2);
  strategy.buckets[kTable].option = core::parse_option(option, compress::known_traits()).value();
  core::set_default_flow(strategy);
  return strategy;
}

// A rank's part of the matrix.
struct Given {
  Arrived::Kind kind = Arrived::Kind::rows;
  std::vector<int64_t> rows = {};
  std::vector<float> values = {};  // of the rows; of a dense gradient all

  Arrived arrived() const {
    const auto* const bytes = reinterpret_cast<const std::byte*>(values.data());
    if (kind == Arrived::Kind::none) return {.kind = kind};
    if (kind == Arrived::Kind::rows) return {.kind = kind, .values = bytes, .rows = rows};
    return Arrived::dense_at(bytes);
  }
  Values dense(int64_t of, int64_t width) const {
    if (kind == Arrived::Kind::dense) return values;
    Values all(static_cast<size_t>(of * width));
    for (size_t i = 0; i < rows.size(); ++i) {
      for (int64_t j = 0; j < width; ++j) {
        all[static_cast<size_t>(rows[i] * width + j)] +=
            values[i * static_cast<size_t>(width) + static_cast<size_t>(j)];
      }
    }
    return all;
  }
};

Given rows_of(core::Rng& rng, std::vector<int64_t> rows, int64_t width) {
  Given given{.rows = std::move(rows)};
  for (size_t i = 0; i < given.rows.size() * static_cast<size_t>(width); ++i) {
    given.values.push_back(rng.below(6) == 0 ? 0.0F : static_cast<float>(rng.normal()));
  }
  return given;
}

struct Averages {
  std::vector<Values> dense;                 // of each rank, as it lies in the arena
  std::vector<std::vector<int64_t>> listed;  // rows in each rank's list
  std::vector<bool> counts = {};
};

// A step of all ranks. Dense gradients of odd ranks are in their place already.
Averages run(Fleet& fleet, const core::GradientTable& table, const std::vector<Given>& given) {
  const int64_t rows = table.tensors[kTable].shape[0], width = table.tensors[kTable].shape[1];
  Averages averages;
  averages.dense.resize(given.size());
  averages.listed.resize(given.size());
  std::vector<char> counts(given.size());
  suites::on_every_rank(fleet.size(), [&](int r) {
    const Given& own = given[static_cast<size_t>(r)];
    Rank& rank = fleet.rank(r);
    Values all(static_cast<size_t>(table.numel()), 1);
    const bool in_place = own.kind == Arrived::Kind::dense && r % 2 == 1;
    if (in_place) std::copy(own.values.begin(), own.values.end(), all.begin() + 7);
    rank.load(all);
    Executor& executor = rank.executor();
    EXPECT_TRUE(executor.begin_step().ok());
    executor.tensor_ready(0);
    EXPECT_FALSE(executor.tensor_ready(kTable, in_place ? Arrived() : own.arrived()));
    executor.tensor_ready(2);
    ASSERT_TRUE(executor.finish_backward().ok());
    const core::Result<bool> concluded = executor.conclude(rank.finite());
    ASSERT_TRUE(concluded.ok()) << concluded.error().message;
    counts[static_cast<size_t>(r)] = concluded.value();
    const Workspace::Listed listed = executor.listed(kTable);
    ASSERT_NE(listed.rows, nullptr);
    EXPECT_EQ(listed.width, width);
    for (int64_t k = 0; k < listed.rows->count; ++k) {
      averages.listed[static_cast<size_t>(r)].push_back(listed.order->row_at(listed.rows->at[k]));
    }
    std::ranges::sort(averages.listed[static_cast<size_t>(r)]);
    executor.lay_out_average(kTable);
    const Values average = rank.average();
    averages.dense[static_cast<size_t>(r)].assign(average.begin() + 7, average.begin() + 7 + rows * width);
  });
  averages.counts.assign(counts.begin(), counts.end());
  return averages;
}

Values expected_average(const std::vector<Given>& given, int64_t rows, int64_t width, const std::vector<int>& mesh) {
  std::vector<Values> gradients;
  for (const Given& each : given) gradients.push_back(each.dense(rows, width));
  return average_along(mesh, std::move(gradients));
}

bool same(const Values& a, const Values& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

const std::vector<std::string> kCodecs = {"rows", "coo", "blocks:16"};
const std::vector<std::string> kPrograms = {
    "encode@device all_gather decode@device",
    "encode@device all_to_all decode@device encode@device all_gather decode@device",
    "encode@device gather decode@device encode@device broadcast decode@device",
    "encode@host all_to_all decode@host encode@host all_gather decode@host",
};

// A scheme for a number of ranks: its steps behind the name of a codec, and its order of additions.
struct Scheme {
  std::string program;
  std::vector<int> mesh;
};
Scheme recursive_doubling(int ranks, core::Place place) {
  const std::string option = to_string(core::recursive_doubling({"rows"}, place, ranks));
  return {option.substr(option.find(' ') + 1), core::mesh_of(ranks)};
}
std::vector<Scheme> schemes_of(int ranks) {
  std::vector<Scheme> all;
  for (const std::string& program : kPrograms) all.push_back({program, {ranks}});
  for (const core::Place place : {core::Place::device, core::Place::host}) {
    if (core::mesh_of(ranks).size() > 1) all.push_back(recursive_doubling(ranks, place));
  }
  return all;
}

std::vector<std::vector<Given>> cases(int ranks, int64_t rows, int64_t width, core::Rng& rng) {
  std::vector<std::vector<Given>> all;
  const auto add = [&](const auto& make) {
    std::vector<Given>& one = all.emplace_back();
    for (int r = 0; r < ranks; ++r) one.push_back(make(r));
  };
  const auto drawn = [&](int64_t count) {
    std::vector<int64_t> numbers;
    for (int64_t i = 0; i < count; ++i) numbers.push_back(static_cast<int64_t>(rng.below(static_cast<uint64_t>(rows))));
    return rows_of(rng, std::move(numbers), width);
  };
  const auto dense = [&](int64_t count) {
    Given sparse = drawn(count);
    return Given{.kind = Arrived::Kind::dense, .values = sparse.dense(rows, width)};
  };
  add([&](int) { return drawn(std::max<int64_t>(1, rows / 10)); });                           // repeated ones as well
  add([&](int r) { return rows_of(rng, {r % rows}, width); });                                // different on each rank
  add([&](int) { return rows_of(rng, {rows - 1, 0, rows - 1}, width); });                     // first and last
  add([&](int) { return Given{}; });                                                          // none
  add([&](int r) { return r == 0 ? drawn(3 * rows) : Given{.kind = Arrived::Kind::none}; });  // nearly all, and none
  add([&](int r) { return r % 3 == 0 ? dense(rows / 5) : r % 3 == 1 ? dense(9 * rows) : drawn(4); });  // of both kinds
  return all;
}

TEST(RowLists, AverageIsThatOfDenseGradientsBitForBit) {
  core::Rng rng(1);
  for (const int ranks : {1, 2, 3, 4, 5, 6, 8}) {
    for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{1, 1}, {3, 16}, {200, 32}}) {
      const core::GradientTable table = job(rows, width);
      const auto all = cases(ranks, rows, width, rng);
      Fleet fleet(ranks, table, kWithHost);
      for (const std::string& codec : kCodecs) {
        for (const auto& [program, mesh] : schemes_of(ranks)) {
          SCOPED_TRACE(codec + ": " + program + ", " + std::to_string(ranks) + " ranks, " + std::to_string(rows) +
                       " rows");
          fleet.run(strategy(table, codec + ": " + program));
          for (const std::vector<Given>& given : all) {
            const Averages averages = run(fleet, table, given);
            const Values expected = expected_average(given, rows, width, mesh);
            for (const Values& average : averages.dense) ASSERT_TRUE(same(average, expected));
            for (const auto& listed : averages.listed) ASSERT_EQ(listed, averages.listed[0]);
          }
        }
      }
    }
  }
}

TEST(RowLists, RowsThatWereUsedAreListedWhateverTheyHold) {
  core::Rng rng(2);
  const core::GradientTable table = job(50, 4);
  Fleet fleet(3, table, kWithHost);
  fleet.run(strategy(table, "rows: " + kPrograms[1]));
  Given zeros{.rows = {7, 7}, .values = Values(8)};
  const Averages averages = run(fleet, table, {rows_of(rng, {3, 49}, 4), zeros, Given{.kind = Arrived::Kind::none}});
  EXPECT_THAT(averages.listed[2], testing::ElementsAre(3, 7, 49));
  const Workspace::Listed listed = fleet.rank(0).executor().listed(kTable);
  EXPECT_EQ(listed.own, 2);
  EXPECT_EQ(fleet.rank(0).executor().listed(0).rows, nullptr);
}

TEST(RowLists, MoreRanksThanRowsAndManyRanksAreServed) {
  core::Rng rng(3);
  for (const auto& [ranks, rows] : {std::pair<int, int64_t>{9, 4}, {12, 5}, {24, 300}}) {
    const core::GradientTable table = job(rows, 2);
    Fleet fleet(ranks, table, {.timeout_ms = 60'000});
    const Scheme schemes[] = {{kPrograms[1], {ranks}}, recursive_doubling(ranks, core::Place::device)};
    for (const std::string codec : {"rows", "coo"}) {
      for (const auto& [program, mesh] : schemes) {
        fleet.run(strategy(table, codec + ": " + program));
        for (const std::vector<Given>& given : cases(ranks, rows, 2, rng)) {
          const Averages averages = run(fleet, table, given);
          const Values expected = expected_average(given, rows, 2, mesh);
          for (const Values& average : averages.dense) ASSERT_TRUE(same(average, expected));
        }
      }
    }
  }
}

TEST(RowLists, SixtyFourRanksAreServed) {
  core::Rng rng(6);
  const core::GradientTable table = job(150, 2);
  Fleet fleet(64, table, {.timeout_ms = 120'000});
  const Scheme schemes[] = {{kPrograms[0], {64}}, {kPrograms[1], {64}}, recursive_doubling(64, core::Place::device)};
  for (const auto& [program, mesh] : schemes) {
    fleet.run(strategy(table, "rows: " + program));
    std::vector<Given> given;
    for (int64_t r = 0; r < 64; ++r) given.push_back(rows_of(rng, {2 * r, 7, 2 * r, 149 - r}, 2));
    const Averages averages = run(fleet, table, given);
    const Values expected = expected_average(given, 150, 2, mesh);
    for (const Values& average : averages.dense) ASSERT_TRUE(same(average, expected));
  }
}

TEST(RowLists, WhatIsNotFiniteIsWherePlainSumsHaveItOnAllRanksWithTheSameBits) {
  core::Rng rng(4);
  const core::GradientTable table = job(40, 3);
  for (const int ranks : {3, 4}) {
    for (const Scheme& scheme : schemes_of(ranks)) {
      Fleet fleet(ranks, table, kWithHost);
      fleet.run(strategy(table, "rows: " + scheme.program));
      for (const float value : {kNan, kInf}) {
        std::vector<Given> given = {rows_of(rng, {1, 2}, 3), rows_of(rng, {2, 30}, 3), rows_of(rng, {}, 3)};
        given[1].values[4] = value;  // row 30
        given.resize(static_cast<size_t>(ranks));
        const Averages averages = run(fleet, table, given);
        for (size_t r = 0; r < given.size(); ++r) {
          EXPECT_FALSE(averages.counts[r]);
          EXPECT_TRUE(same(averages.dense[r], averages.dense[0]));
          for (size_t i = 0; i < averages.dense[r].size(); ++i) EXPECT_EQ(std::isfinite(averages.dense[r][i]), i != 91);
        }
      }
    }
  }
}

TEST(RowLists, ARowThatThereIsNotEndsTheStep) {
  const core::GradientTable table = job(40, 3);
  Fleet fleet(1, table);
  fleet.run(strategy(table, "rows: " + kPrograms[0]));
  Executor& executor = fleet.rank(0).executor();
  EXPECT_TRUE(executor.begin_step().ok());
  const std::vector<int64_t> rows{40};
  const Values values(3);
  executor.tensor_ready(kTable, {Arrived::Kind::rows, reinterpret_cast<const std::byte*>(values.data()), rows});
  EXPECT_THAT(executor.finish_backward().error().message, testing::HasSubstr("row 40 of a matrix of 40 rows"));
}

TEST(RowLists, RowsReachBucketsOfOtherProgramsAsDenseGradients) {
  core::Rng rng(5);
  const core::GradientTable table = job(60, 4);
  for (const std::string& option : {std::string("all_reduce"), std::string("rows: ") + kPrograms[0]}) {
    Fleet fleet(2, table);
    core::Strategy merged = core::uniform(core::cut(table, 1 << 20, 1 << 20, false),
                                          core::parse_option(option, compress::known_traits()).value(), 1);
    fleet.run(merged);
    const std::vector<Given> given = {rows_of(rng, {5, 5, 59}, 4), Given{.kind = Arrived::Kind::none}};
    const Values expected = expected_average(given, 60, 4, {2});
    suites::on_every_rank(2, [&](int r) {
      Rank& rank = fleet.rank(r);
      rank.load(Values(static_cast<size_t>(table.numel()), 3));
      EXPECT_TRUE(rank.executor().begin_step().ok());
      for (const int32_t t : {0, 2}) rank.executor().tensor_ready(t);
      rank.executor().tensor_ready(kTable, given[static_cast<size_t>(r)].arrived());
      EXPECT_TRUE(rank.executor().finish_backward().ok());
      EXPECT_TRUE(rank.executor().conclude(rank.finite()).ok());
      EXPECT_EQ(rank.executor().listed(kTable).rows, nullptr);
      const Values average = rank.average();
      for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(average[7 + i], expected[i]);
    });
  }
}

TEST(RowLists, AreMadeOfMatricesThatLieRowByRowAlone) {
  core::GradientTable table = job(12, 5);
  const core::Strategy lists = strategy(table, "rows: " + kPrograms[1]);
  const auto has_lists = [&] {
    const auto program = compile(lists, table, {.rank = 0, .size = 1});
    return std::ranges::any_of(program.value()->buckets,
                               [](const BucketProgram& bucket) { return bucket.lists.has_value(); });
  };
  EXPECT_TRUE(has_lists());
  table.tensors[kTable].memory_order = {1, 0};
  EXPECT_FALSE(has_lists());
}

TEST(RowLists, MemoryThatNoStepUsedIsNotTouched) {
  const core::GradientTable table = job(int64_t{1} << 22, 64);  // 1 GiB
  const core::Strategy lists = strategy(table, "rows: " + kPrograms[1]);
  const auto program = compile(lists, table, {.rank = 0, .size = 1});
  int64_t untouched = 0;
  for (const Range& range : program.value()->untouched) untouched += range.length;
  EXPECT_LT(program.value()->pool_bytes[core::Space::host] - untouched, 1 << 20);
}

}  // namespace
}  // namespace gradtune::exec
