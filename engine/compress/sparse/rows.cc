// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/sparse/rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>

#include "engine/compress/sparse/sparse_kernels.h"

namespace gradtune::compress {
namespace {

constexpr uint64_t kLow = 0xffffffff;

// Sorts by the upper half of each key, stable. Each pass sorts by kBits bits; the largest key determines the number
// of passes.
template <int kBits>
void sort_keys_by(RowScratch& scratch, int64_t most) {
  constexpr uint64_t kMask = (1U << kBits) - 1;
  const int bits = std::bit_width(static_cast<uint64_t>(std::max<int64_t>(most - 1, 1)));
  scratch.sorted.resize(scratch.keys.size());
  for (int shift = 0; shift < bits; shift += kBits) {
    std::array<uint32_t, kMask + 1> ends{};
    const auto digit = [&](uint64_t key) { return key >> (32 + shift) & kMask; };
    for (const uint64_t key : scratch.keys) ++ends[digit(key)];
    uint32_t sum = 0;
    for (uint32_t& end : ends) sum += std::exchange(end, sum);
    for (const uint64_t key : scratch.keys) scratch.sorted[ends[digit(key)]++] = key;
    scratch.keys.swap(scratch.sorted);
  }
}

// A few keys are sorted faster than many counters are cleared.
void sort_keys(RowScratch& scratch, int64_t most) {
  scratch.keys.size() < 4096 ? sort_keys_by<7>(scratch, most) : sort_keys_by<11>(scratch, most);
}

}  // namespace

core::Status collect_rows(const CooRows& from, int64_t width, const core::RowOrder& order, RowBuffer& to,
                          RowScratch& scratch) {
  to.count = 0;
  core::check(from.rows.size() <= kLow, "a gradient lists fewer than 2^32 rows");
  scratch.keys.resize(from.rows.size());
  for (size_t k = 0; k < from.rows.size(); ++k) {
    const size_t i = from.order.empty() ? k : static_cast<size_t>(from.order[k]);
    const int64_t row = from.rows[i];
    if (row < 0 || row >= order.rows()) {
      return core::Error{core::Error::Code::invalid, "a sparse gradient has row " + std::to_string(row) +
                                                         " of a matrix of " + std::to_string(order.rows()) + " rows"};
    }
    scratch.keys[k] = uint64_t{order.place_of(row)} << 32 | i;
  }
  sort_keys(scratch, order.rows());
  const auto bytes = static_cast<size_t>(width) * sizeof(float);
  for (size_t k = 0; k < scratch.keys.size(); ++k) {
    const auto place = static_cast<uint32_t>(scratch.keys[k] >> 32);
    const float* const row = from.values + static_cast<int64_t>(scratch.keys[k] & kLow) * width;
    if (to.count == 0 || to.at[to.count - 1] != place) {
      core::check(to.count < to.most, "a list has room for all rows of its matrix");
      to.at[to.count] = place;
      std::memcpy(to.values + to.count++ * width, row, bytes);
      continue;
    }
    float* const sum = to.values + (to.count - 1) * width;
    for (int64_t i = 0; i < width; ++i) sum[i] += row[i];
  }
  return {};
}

void collect_dense(const float* matrix, int64_t width, const core::RowOrder& order, RowBuffer& to,
                   RowScratch& scratch) {
  scratch.keys.clear();
  for (int64_t first = 0; first < order.rows(); first += 64) {
    uint64_t used = 0;
    const int64_t n = std::min<int64_t>(64, order.rows() - first) * width;
    mark_units(matrix + first * width, nullptr, static_cast<size_t>(n), static_cast<size_t>(width), &used);
    for (; used != 0; used &= used - 1) {
      const int64_t row = first + std::countr_zero(used);
      scratch.keys.push_back(uint64_t{order.place_of(row)} << 32 | static_cast<uint64_t>(row));
    }
  }
  sort_keys(scratch, order.rows());
  to.count = static_cast<int64_t>(scratch.keys.size());
  core::check(to.count <= to.most, "a list has room for all rows of its matrix");
  const auto bytes = static_cast<size_t>(width) * sizeof(float);
  for (int64_t k = 0; k < to.count; ++k) {
    const uint64_t key = scratch.keys[static_cast<size_t>(k)];
    to.at[k] = static_cast<uint32_t>(key >> 32);
    std::memcpy(to.values + k * width, matrix + static_cast<int64_t>(key & kLow) * width, bytes);
  }
}

bool has_repeated(std::span<const int64_t> rows, int64_t most, RowScratch& scratch) {
  core::check(rows.size() <= kLow, "a gradient lists fewer than 2^32 rows");
  scratch.keys.resize(rows.size());
  // A number that is no row of the matrix may lose bits here: it is an error anyway.
  for (size_t i = 0; i < rows.size(); ++i) scratch.keys[i] = static_cast<uint64_t>(rows[i]) << 32;
  sort_keys(scratch, std::min(most, core::RowOrder::kMostRows));
  return std::ranges::adjacent_find(scratch.keys) != scratch.keys.end();
}

std::span<const uint64_t> by_row_number(const RowBuffer& list, const core::RowOrder& order, RowScratch& scratch) {
  scratch.keys.resize(static_cast<size_t>(list.count));
  for (int64_t k = 0; k < list.count; ++k) {
    scratch.keys[static_cast<size_t>(k)] =
        static_cast<uint64_t>(order.row_at(list.at[k])) << 32 | static_cast<uint64_t>(k);
  }
  sort_keys(scratch, order.rows());
  return scratch.keys;
}

void spread(const RowBuffer& list, int64_t width, const core::RowOrder& order, float* matrix) {
  const auto bytes = static_cast<size_t>(width) * sizeof(float);
  for (int64_t k = 0; k < list.count; ++k) {
    std::memcpy(matrix + order.row_at(list.at[k]) * width, list.values + k * width, bytes);
  }
}

}  // namespace gradtune::compress
