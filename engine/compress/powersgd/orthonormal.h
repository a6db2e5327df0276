// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Orthonormal columns for `powersgd`. Internal to engine/compress.
#pragma once

#include <cstddef>

#include "engine/compress/queue.h"
#include "engine/compress/shared.h"

namespace gradtune::compress {

// A column is treated as a combination of those before it if no larger share of it is left.
inline constexpr double kLeastLeft = 1e-6;

// Columns are cut into pieces of column_piece(rows) elements, whose sums are added up in order. There are at most as
// many pieces as a device's block of threads processes at once.
inline constexpr int64_t kMostColumnPieces = 32;
constexpr int64_t column_piece(int64_t rows) {
  constexpr int64_t kLeast = 64;
  // It does not use std::max, which takes kLeast by its address; a device does not have that.
  const int64_t even = round_up((rows + kMostColumnPieces - 1) / kMostColumnPieces, 16);
  return even < kLeast ? kLeast : even;
}

// Makes the columns, each contiguous and one behind the other, an orthonormal basis of their span, by Gram-Schmidt.
// The columns before a column are subtracted from it twice, as once is not enough for columns that are nearly alike.
// Sums are in double precision. A column of which less than a millionth is left was, up to rounding, a combination of
// those before it. It becomes zero, as does one that is not finite. Long columns are cut among the threads of the
// queue, in pieces that do not depend on the number of threads. Each pass subtracts one column from another and
// multiplies the result with the next one, so a column is read 2 * (columns before it) + 3 times.
void orthonormalise(float* columns, size_t rows, size_t count, HostQueue& queue);

}  // namespace gradtune::compress
