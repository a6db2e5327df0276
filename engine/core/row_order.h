// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// An invertible permutation of the row numbers of a matrix: row r stands at place_of(r), and row_at() leads back.
// Equal parts of the places hold about equally many of the rows in use, whichever these are: ids sorted by
// frequency, clusters, runs (Zen, OSDI 2025, section 3, hashes for the same purpose). The permutation depends on the
// number of rows alone, so all ranks have the same one, and nothing is stored.
//
// Numbers are mixed by multiplications with odd numbers and by shifts to the right, each of which is invertible
// among the numbers of that many bits. A result beyond the last row is mixed again (cycle walking, Black and Rogaway
// 2002). The balance is that of a hash: there is no bound for rows that were chosen to defeat it.
#pragma once

#include <bit>
#include <cstdint>

#include "engine/core/result.h"

namespace gradtune::core {

// The inverse of an odd number modulo 2^64, and so modulo every smaller power of two (Newton: each iteration doubles
// the number of correct bits).
constexpr uint64_t inverse_of_odd(uint64_t odd) {
  uint64_t x = odd;
  for (int i = 0; i < 6; ++i) x *= 2 - odd * x;
  return x;
}

class RowOrder {
 public:
  static constexpr int64_t kMostRows = int64_t{1} << 32;

  explicit RowOrder(int64_t rows = 1)
      : rows_(static_cast<uint64_t>(rows)),
        bits_(rows <= 2 ? 1 : std::bit_width(static_cast<uint64_t>(rows) - 1)),
        shift_((bits_ + 1) / 2),
        mask_((uint64_t{1} << bits_) - 1) {
    check(rows >= 1 && rows <= kMostRows, "a matrix has from 1 to 2^32 rows");
  }

  int64_t rows() const { return static_cast<int64_t>(rows_); }

  uint32_t place_of(int64_t row) const {
    auto x = static_cast<uint64_t>(row);
    do {
      x = ((x ^ x >> shift_) * kFirst) & mask_;
      x = ((x ^ x >> shift_) * kSecond) & mask_;
      x ^= x >> shift_;
    } while (x >= rows_);
    return static_cast<uint32_t>(x);
  }

  int64_t row_at(uint32_t place) const {
    uint64_t x = place;
    do {
      x ^= x >> shift_;  // is its own inverse, as twice the shift moves all bits out
      x = (x * kSecondInverse) & mask_;
      x = ((x ^ x >> shift_) * kFirstInverse) & mask_;
      x ^= x >> shift_;
    } while (x >= rows_);
    return static_cast<int64_t>(x);
  }

  bool operator==(const RowOrder&) const = default;

 private:
  static constexpr uint64_t kFirst = 0x9e3779b97f4a7c15, kSecond = 0xd6e8feb86659fd93;
  static constexpr uint64_t kFirstInverse = inverse_of_odd(kFirst), kSecondInverse = inverse_of_odd(kSecond);

  uint64_t rows_;
  int bits_, shift_;
  uint64_t mask_;
};

}  // namespace gradtune::core
