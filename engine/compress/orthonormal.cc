// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/orthonormal.h"

#include <algorithm>
#include <cmath>

namespace gradtune::compress {
namespace {

constexpr double kLeast = 1e-6;

// Element i goes to partial sum i % 8, so that compilers find vectors and every machine the same sum.
double dot(const float* a, const float* b, size_t n) {
  constexpr size_t kSums = 8;
  double sums[kSums] = {};
  size_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (size_t k = 0; k < kSums; ++k) sums[k] += double{a[i + k]} * double{b[i + k]};
  }
  for (; i < n; ++i) sums[i % kSums] += double{a[i]} * double{b[i]};
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

void subtract(double factor, const float* from, float* column, size_t n) {
  for (size_t i = 0; i < n; ++i) column[i] = static_cast<float>(double{column[i]} - factor * double{from[i]});
}

}  // namespace

void orthonormalise(float* columns, size_t rows, size_t count) {
  for (size_t j = 0; j < count; ++j) {
    float* const column = columns + j * rows;
    const double before = std::sqrt(dot(column, column, rows));
    for (int pass = 0; pass < 2; ++pass) {
      for (size_t k = 0; k < j; ++k) {
        const float* const other = columns + k * rows;
        subtract(dot(column, other, rows), other, column, rows);
      }
    }
    const double left = std::sqrt(dot(column, column, rows));
    if (left > kLeast * before && std::isfinite(left)) {
      const double factor = 1 / left;
      for (size_t i = 0; i < rows; ++i) column[i] = static_cast<float>(double{column[i]} * factor);
    } else {
      std::fill_n(column, rows, 0.0F);
    }
  }
}

}  // namespace gradtune::compress
