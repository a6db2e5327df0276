// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/sparse/rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <set>

#include "engine/compress/calls.h"
#include "engine/core/rng.h"
#include "tests/suites/compressor_harness.h"

namespace gradtune::compress {
namespace {

using suites::make;
using suites::same_bytes;

// A list with memory of its own.
class List {
 public:
  List(int64_t rows, int64_t width)
      : at_(static_cast<size_t>(rows), 0xa5a5a5a5), values_(static_cast<size_t>(rows * width), -1), width_(width) {
    buffer = {at_.data(), values_.data(), rows, 0};
  }
  Rows part(int64_t first, int64_t rows) const {
    const auto begin = std::lower_bound(buffer.at, buffer.at + buffer.count, first);
    const auto end = std::lower_bound(buffer.at, buffer.at + buffer.count, first + rows);
    return {first, rows, width_, {begin, end}, buffer.values + (begin - buffer.at) * width_};
  }
  // The dense array over the whole range of places.
  std::vector<float> dense() const {
    std::vector<float> all(static_cast<size_t>(buffer.most * width_));
    for (int64_t k = 0; k < buffer.count; ++k) {
      std::copy_n(buffer.values + k * width_, width_, all.begin() + int64_t{buffer.at[k]} * width_);
    }
    return all;
  }
  std::vector<uint32_t> places() const { return {buffer.at, buffer.at + buffer.count}; }

  RowBuffer buffer;

 private:
  std::vector<uint32_t> at_;
  std::vector<float> values_;
  const int64_t width_;
};

struct Coo {
  std::vector<int64_t> rows;
  std::vector<float> values;
};

// Row numbers in the form that a backward pass leaves.
Coo draw(core::Rng& rng, int64_t rows, int64_t width, int64_t count) {
  Coo coo;
  for (int64_t i = 0; i < count; ++i) {
    coo.rows.push_back(static_cast<int64_t>(rng.below(static_cast<uint64_t>(rows))));
    for (int64_t j = 0; j < width; ++j)
      coo.values.push_back(rng.below(5) == 0 ? 0.0F : static_cast<float>(rng.normal()));
  }
  return coo;
}

List collected(const Coo& coo, int64_t rows, int64_t width) {
  List list(rows, width);
  RowScratch scratch;
  EXPECT_TRUE(collect_rows({coo.rows, coo.values.data()}, width, core::RowOrder(rows), list.buffer, scratch).ok());
  return list;
}

TEST(Rows, RepeatedRowsAreAddedInTheOrderGiven) {
  core::Rng rng(3);
  for (const int64_t rows : {1, 5, 100, 4000}) {
    for (const int64_t count : {0, 1, 7, 500}) {
      constexpr int64_t kWidth = 3;
      const Coo coo = draw(rng, rows, kWidth, count);
      std::map<uint32_t, std::vector<float>> expected;
      const core::RowOrder order(rows);
      for (size_t i = 0; i < coo.rows.size(); ++i) {
        const float* const from = coo.values.data() + i * kWidth;
        const auto [row, is_new] = expected.try_emplace(order.place_of(coo.rows[i]), from, from + kWidth);
        for (size_t j = 0; j < kWidth && !is_new; ++j) row->second[j] += from[j];
      }
      const List list = collected(coo, rows, kWidth);
      ASSERT_EQ(list.buffer.count, static_cast<int64_t>(expected.size()));
      int64_t k = 0;
      for (const auto& [place, values] : expected) {
        EXPECT_EQ(list.buffer.at[k], place);
        EXPECT_TRUE(same_bytes({list.buffer.values + k++ * kWidth, kWidth}, values));
      }
    }
  }
}

TEST(Rows, RepeatedRowsAreAddedInTheOrderTold) {
  const std::vector<int64_t> rows{4, 2, 4, 4}, order{3, 1, 0, 2};
  const std::vector<float> values{1, 5, -1e8F, 1e8F};
  List list(10, 1);
  RowScratch scratch;
  ASSERT_TRUE(collect_rows({rows, values.data(), order}, 1, core::RowOrder(10), list.buffer, scratch).ok());
  const std::vector<float> dense = list.dense();
  EXPECT_EQ(dense[core::RowOrder(10).place_of(4)], (1e8F + 1) - 1e8F);
  EXPECT_EQ(dense[core::RowOrder(10).place_of(2)], 5);
}

TEST(Rows, RepeatedOnesAreFound) {
  core::Rng rng(5);
  RowScratch scratch;
  for (const int64_t most : {1, 100, 400'000}) {
    for (const int64_t count : {0, 1, 2, 50, 5000}) {
      std::vector<int64_t> rows = draw(rng, most, 1, count).rows;
      const bool expected = std::set(rows.begin(), rows.end()).size() < rows.size();
      EXPECT_EQ(has_repeated(rows, most, scratch), expected) << most << " " << count;
    }
  }
  std::vector<int64_t> apart(3000);
  for (size_t i = 0; i < apart.size(); ++i) apart[i] = static_cast<int64_t>(i * 7 % 3001);
  EXPECT_FALSE(has_repeated(apart, 3001, scratch));
  apart.back() = apart.front();
  EXPECT_TRUE(has_repeated(apart, 3001, scratch));
}

TEST(Rows, ANumberThatIsNoRowsIsAnError) {
  for (const int64_t row : {int64_t{-1}, int64_t{10}, std::numeric_limits<int64_t>::max()}) {
    List list(10, 1);
    RowScratch scratch;
    const std::vector<int64_t> rows{3, row};
    const std::vector<float> values{1, 2};
    const auto status = collect_rows({rows, values.data()}, 1, core::RowOrder(10), list.buffer, scratch);
    EXPECT_EQ(status.error().message, "a sparse gradient has row " + std::to_string(row) + " of a matrix of 10 rows");
  }
}

TEST(Rows, AMatrixIsListedAndSpreadAgain) {
  core::Rng rng(4);
  constexpr int64_t kRows = 700, kWidth = 5;
  std::vector<float> matrix(kRows * kWidth);
  for (int64_t row : {0, 3, 333, 699}) {
    for (int64_t i = 0; i < kWidth; ++i)
      matrix[static_cast<size_t>(row * kWidth + i)] = static_cast<float>(rng.normal());
  }
  matrix[0] = std::numeric_limits<float>::quiet_NaN();
  matrix[50 * kWidth] = -0.0F;  // a bit that is not zero
  List list(kRows, kWidth);
  RowScratch scratch;
  const core::RowOrder order(kRows);
  collect_dense(matrix.data(), kWidth, order, list.buffer, scratch);
  EXPECT_EQ(list.buffer.count, 5);
  std::vector<int64_t> numbers;
  for (const uint64_t key : by_row_number(list.buffer, order, scratch)) {
    numbers.push_back(static_cast<int64_t>(key >> 32));
    EXPECT_EQ(order.row_at(list.buffer.at[key & 0xffffffff]), numbers.back());
  }
  EXPECT_EQ(numbers, (std::vector<int64_t>{0, 3, 50, 333, 699}));
  std::vector<float> again(matrix.size());
  spread(list.buffer, kWidth, order, again.data());
  EXPECT_TRUE(same_bytes(again, matrix));
}

// --- what every compressor of lists has to do ------------------------------------------------------------------------

class RowCodecs : public testing::TestWithParam<std::string> {
 protected:
  const std::unique_ptr<Compressor> compressor_ = make(GetParam());
  const std::unique_ptr<HostQueue> queue_ = make_serial_queue();

  std::vector<std::byte> encoded(const Rows& rows, float scale = 1, Verdict* verdict = nullptr) const {
    std::vector<std::byte> payload(static_cast<size_t>(compressor_->payload_bytes(rows.rows * rows.width)));
    Verdict own;
    Verdict& found = verdict == nullptr ? own : *verdict;
    compressor_->rows()->encode_rows({.rows = rows, .scale = scale, .payload = payload, .verdict = &found}, *queue_);
    EXPECT_EQ(found.used_bytes, compressor_->traits().used_bytes(payload));
    EXPECT_LE(found.used_bytes, static_cast<int64_t>(payload.size()));
    return payload;
  }
  Verdict decode(const std::vector<std::vector<std::byte>>& payloads, int64_t first, int64_t rows, int64_t width,
                 List& out) const {
    std::vector<std::span<const std::byte>> spans(payloads.begin(), payloads.end());
    Verdict verdict;
    compressor_->rows()->decode_rows(
        {.payloads = spans, .first = first, .rows = rows, .width = width, .out = &out.buffer, .verdict = &verdict},
        *queue_);
    return verdict;
  }
};

INSTANTIATE_TEST_SUITE_P(Table, RowCodecs, testing::Values("rows", "coo", "blocks:16", "blocks:64"),
                         [](const auto& name) {
                           std::string text = name.param;
                           std::replace(text.begin(), text.end(), ':', '_');
                           return text;
                         });

TEST_P(RowCodecs, PayloadsAreThoseOfTheGradientThatTheListStandsFor) {
  core::Rng rng(5);
  for (const int64_t rows : {1, 2, 64, 1000, 5000}) {
    for (const int64_t width : {1, 3, 16, 32}) {
      for (const double share : {0.0, 0.01, 0.3, 0.99, 3.0}) {
        const auto count = static_cast<int64_t>(share * static_cast<double>(rows));
        Coo coo = draw(rng, rows, width, count);
        for (float& value : coo.values) value = value == 0 ? 1.0F : value;  // a row of zeros is in no gradient
        const List list = collected(coo, rows, width);
        const std::vector<float> dense = list.dense();
        std::vector<std::byte> expected(static_cast<size_t>(compressor_->payload_bytes(rows * width)));
        std::vector<std::byte> scratch(static_cast<size_t>(compressor_->scratch_bytes(rows * width)));
        const bool finite = encode_now(
            *compressor_,
            {.gradient = dense, .scale = 0.25F, .work = {.row = width}, .payload = expected, .scratch = scratch},
            *queue_);
        EXPECT_TRUE(finite);
        const std::vector<std::byte> payload = encoded(list.part(0, rows), 0.25F);
        const auto used = static_cast<size_t>(compressor_->traits().used_bytes(payload));
        ASSERT_EQ(std::memcmp(payload.data(), expected.data(), used), 0) << rows << " x " << width << ", " << count;
      }
    }
  }
}

TEST_P(RowCodecs, SumsAreThoseOfDenseGradientsInTheOrderGiven) {
  core::Rng rng(6);
  constexpr int64_t kRows = 3000, kWidth = 16;
  for (const int64_t count : {0, 1, 60, 3000, 40000}) {
    std::vector<std::vector<std::byte>> payloads;
    std::vector<float> expected(kRows * kWidth);
    std::vector<bool> touched(kRows);
    for (int rank = 0; rank < 5; ++rank) {
      const List list = collected(draw(rng, kRows, kWidth, rank == 3 ? 0 : count), kRows, kWidth);
      payloads.push_back(encoded(list.part(0, kRows)));
      const std::vector<float> dense = list.dense();
      for (size_t i = 0; i < dense.size(); ++i) expected[i] += dense[i];
      for (const uint32_t place : list.places()) touched[place] = true;
    }
    List sum(kRows, kWidth);
    EXPECT_EQ(decode(payloads, 0, kRows, kWidth, sum).rejected, 0U);
    EXPECT_TRUE(same_bytes(sum.dense(), expected));
    EXPECT_TRUE(std::is_sorted(sum.buffer.at, sum.buffer.at + sum.buffer.count));
    if (GetParam() == "rows") {
      EXPECT_EQ(sum.buffer.count, std::count(touched.begin(), touched.end(), true));
    }
  }
}

TEST_P(RowCodecs, PartsPutSideBySideAreTheWhole) {
  core::Rng rng(8);
  constexpr int64_t kRows = 1001, kWidth = 16;
  for (const int64_t parts : {1, 2, 3, 7, 2000}) {  // more than rows as well
    const List list = collected(draw(rng, kRows, kWidth, 300), kRows, kWidth);
    const int64_t length = (kRows + parts - 1) / parts;
    List whole(kRows, kWidth);
    for (int64_t first = 0; first < kRows; first += length) {
      const int64_t rows = std::min(length, kRows - first);
      EXPECT_EQ(decode({encoded(list.part(first, rows))}, first, rows, kWidth, whole).rejected, 0U);
    }
    EXPECT_TRUE(same_bytes(whole.dense(), list.dense()));
  }
}

TEST_P(RowCodecs, WhatIsNotFiniteIsSeenAndCarried) {
  for (const float value : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const std::vector<int64_t> rows{0, 9};
    const std::vector<float> values{0, 0, 1, value};
    const List list = collected({rows, values}, 10, 2);
    Verdict verdict;
    const auto payload = encoded(list.part(0, 10), 1, &verdict);
    EXPECT_EQ(verdict.nonfinite, 1U);
    List sum(10, 2);
    EXPECT_EQ(decode({payload, payload}, 0, 10, 2, sum).rejected, 0U);
    int64_t found = 0;
    for (const float element : sum.dense()) found += std::isfinite(element) ? 0 : 1;
    EXPECT_EQ(found, 1);
  }
  const std::vector<int64_t> rows{4};
  const std::vector<float> values{3e38F};
  Verdict verdict;
  encoded(collected({rows, values}, 10, 1).part(0, 10), 4, &verdict);
  EXPECT_EQ(verdict.nonfinite, 1U);
}

TEST_P(RowCodecs, APayloadIsNeverLargerThanTheGradientAndSmallWhereLittleIsThere) {
  core::Rng rng(9);
  constexpr int64_t kRows = 10'000, kWidth = 16;
  for (const int64_t count : {0, 10, 100, 5000, 100'000}) {
    const List list = collected(draw(rng, kRows, kWidth, count), kRows, kWidth);
    Verdict verdict;
    encoded(list.part(0, kRows), 1, &verdict);
    EXPECT_LE(verdict.used_bytes, 4 * kRows * kWidth + 48);
    if (GetParam() == "coo") {
      EXPECT_LE(verdict.used_bytes, 48 + 16 + list.buffer.count * kWidth * 8);
    } else {
      EXPECT_LE(verdict.used_bytes, 48 + 16 + list.buffer.count * (kWidth * 4 + 4));
    }
  }
}

TEST_P(RowCodecs, ChangedPayloadsGiveListsOrNamedRejections) {
  core::Rng rng(10);
  constexpr int64_t kRows = 200, kWidth = 16;
  for (const int64_t count : {3, 60, 1000}) {
    const auto payload = encoded(collected(draw(rng, kRows, kWidth, count), kRows, kWidth).part(0, kRows));
    for (int i = 0; i < 3000; ++i) {
      auto changed = payload;
      for (int flips = 0; flips <= i % 3; ++flips) {
        const size_t among = i % 2 == 0 ? 64 : changed.size();
        changed[rng.below(among)] ^= static_cast<std::byte>(1U << rng.below(8));
      }
      List out(kRows, kWidth);
      const Verdict verdict = decode({payload, changed}, 0, kRows, kWidth, out);
      EXPECT_LE(verdict.rejected, 2U);
      EXPECT_TRUE(std::is_sorted(out.buffer.at, out.buffer.at + out.buffer.count));
    }
  }
}

}  // namespace
}  // namespace gradtune::compress
