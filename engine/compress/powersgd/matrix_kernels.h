// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Kernels of `powersgd`: products of a large matrix, which is row-major, with narrow ones. Each column of a narrow
// matrix is contiguous, and columns are a stride apart. Every sum has a fixed order that neither threads nor SIMD
// targets change. Internal to engine/compress.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/compress/powersgd/orthonormal.h"

namespace gradtune::compress {

inline constexpr size_t kMaxRank = 64;

// Narrow factors of rows are padded with zeros to a multiple of so many elements.
inline constexpr size_t kLanes = 16;

// p = scale * M q, for rows of M = gradient + residual.
struct MatrixProduct {
  const float* gradient;
  const float* residual;  // or null
  float* sum;             // receives M, or null
  bool stream;            // past the caches
  size_t rows, columns;
  const float* q;  // padded
  size_t q_stride;
  size_t rank;
  float scale;
  float* p;
  size_t p_stride;
};
void multiply(const MatrixProduct& job);

// q = M^T p, for rows of M and a strip of its columns.
struct TransposedProduct {
  const float* matrix;
  size_t row_stride;
  size_t rows, columns;
  const float* p;
  size_t p_stride;
  size_t rank;
  float* q;
  size_t q_stride;
};
void multiply_transposed(const TransposedProduct& job);

// out = (accumulate ? out : 0) + (matrix == null ? p q^T : matrix_factor * matrix - product_factor * p q^T), for rows.
struct OuterProduct {
  const float* p;
  size_t p_stride;
  const float* q;
  size_t q_stride;
  size_t rank;
  size_t rows, columns;
  const float* matrix;  // may be `out`
  float matrix_factor, product_factor;
  float* out;
  bool accumulate;
  bool stream;  // past the caches
};
void multiply_outer(const OuterProduct& job);

// Rows of some columns.
struct Columns {
  float* at;
  size_t stride;
  size_t rows, count;
};

// The products of all pairs of columns, in double precision. Element i goes to partial sum i % 8.
void multiply_pairs(const Columns& of, double* products);

// An upper triangle R, column by column (pair_at), with the inverses of its diagonal in place of that. An inverse is 0
// where a column has to become zero.
struct Triangle {
  double numbers[column_pairs(kMaxRank)];
  double inverses[kMaxRank];
};

// columns = columns R^-1, in double precision and then rounded.
void divide(const Columns& of, const Triangle& r);

}  // namespace gradtune::compress
