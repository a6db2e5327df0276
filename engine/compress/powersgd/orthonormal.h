// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Orthonormal columns for `powersgd`. Internal to engine/compress.
#pragma once

#include <cstddef>

#include "engine/compress/queue.h"
#include "engine/compress/shared.h"

namespace gradtune::compress {

// A column of which no larger share is left was a combination of those before it.
inline constexpr double kLeastLeft = 1e-6;

// Columns are cut into pieces of so many elements, whose sums are added up in order: as many as a device's block of
// threads works on at once.
inline constexpr int64_t kMostColumnPieces = 32;
constexpr int64_t column_piece(int64_t rows) {
  constexpr int64_t kLeast = 64;
  // Not by std::max: it takes kLeast by its address, which a device does not have.
  const int64_t even = round_up((rows + kMostColumnPieces - 1) / kMostColumnPieces, 16);
  return even < kLeast ? kLeast : even;
}

// Makes the columns, each contiguous and one behind the other, an orthonormal basis of what they span: Gram-Schmidt,
// where each column is freed of those before it twice, as once is not enough for columns that are nearly alike; sums
// are of double precision. A column of which less than a millionth is left was a combination of those before it, but
// for rounding, and becomes zero, as does one that is not finite. Long columns are cut among the threads of the queue,
// in pieces that do not depend on their number. Each pass frees a column of one before it and multiplies it with the
// next, so a column is read 2 * (columns before it) + 3 times.
void orthonormalise(float* columns, size_t rows, size_t count, HostQueue& queue);

}  // namespace gradtune::compress
