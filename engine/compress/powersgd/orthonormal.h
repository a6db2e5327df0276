// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Orthonormal columns for `powersgd`, by Cholesky's factorisation of their products P^T P = R^T R, and P R^-1 in place
// of P. That is done twice, because once is not enough for columns that are nearly alike (Fukaya, Nakatsukasa,
// Yanagisawa, Yamamoto: CholeskyQR2: A Simple and Communication-Avoiding Algorithm for Computing a Tall-Skinny QR
// Factorization on a Large-Scale Parallel System; ScalA 2014). Internal to engine/compress.
#pragma once

#include <cstddef>

#include "engine/compress/queue.h"
#include "engine/compress/shared.h"

namespace gradtune::compress {

// A column is treated as a combination of those before it if no larger share of it is left.
inline constexpr double kLeastLeft = 1e-6;

// Columns are cut into pieces of column_piece(rows) elements, whose products are added up in order. The pieces do not
// depend on the number of threads.
inline constexpr int64_t kMostColumnPieces = 32;
constexpr int64_t column_piece(int64_t rows) {
  constexpr int64_t kLeast = 64;
  // It does not use std::max, which takes kLeast by its address; a device does not have that.
  const int64_t even = round_up((rows + kMostColumnPieces - 1) / kMostColumnPieces, 16);
  return even < kLeast ? kLeast : even;
}
constexpr int64_t column_pieces(int64_t rows) { return (rows + column_piece(rows) - 1) / column_piece(rows); }

// The pairs of columns, those of a column with itself included; and the place of one, where first <= second.
constexpr int64_t column_pairs(int64_t count) { return count * (count + 1) / 2; }
constexpr int64_t pair_at(int64_t first, int64_t second) { return column_pairs(second) + first; }

// The products of all pairs of columns, of all pieces.
constexpr int64_t product_numbers(int64_t rows, int64_t count) { return column_pieces(rows) * column_pairs(count); }

// Makes the columns, each contiguous and one behind the other, an orthonormal basis of their span. Products are in
// double precision, and overwrite `products`. A column of which less than a millionth is left was, up to rounding, a
// combination of those before it. It becomes zero, as does one that is not finite.
void orthonormalise(float* columns, size_t rows, size_t count, double* products, HostQueue& queue);

}  // namespace gradtune::compress
