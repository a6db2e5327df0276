// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Kernels of `powersgd`: products of a large matrix, which is row-major, with narrow ones. Each column of a narrow
// matrix is contiguous, and columns are a stride apart. Every sum has a fixed order that neither threads nor SIMD
// targets change. Internal to engine/compress.
#pragma once

#include <cstddef>
#include <cstdint>

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

// column = factor * column - taken * from, in double precision and then rounded. If `from` is null, the second term
// is left out. Returns the product of the new column with `next`, which may be the column itself. Element i goes to
// partial sum i % 8.
struct ColumnPass {
  float* column;
  double factor, taken;
  const float* from;
  const float* next;
  size_t n;
};
double take_and_multiply(const ColumnPass& job);

}  // namespace gradtune::compress
