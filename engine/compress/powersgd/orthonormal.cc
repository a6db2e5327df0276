// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/powersgd/orthonormal.h"

#include <algorithm>
#include <cmath>

#include "engine/compress/powersgd/matrix_kernels.h"
#include "engine/compress/shared.h"

namespace gradtune::compress {
namespace {

constexpr double kLeast = kLeastLeft;
constexpr int64_t kMostPieces = kMostColumnPieces;

}  // namespace

void orthonormalise(float* columns, size_t rows, size_t count, HostQueue& queue) {
  const auto n = static_cast<int64_t>(rows);
  const int64_t step = column_piece(n);
  const int64_t pieces = (n + step - 1) / step;
  const int64_t task = round_up(kBlockElements, step);
  // column = factor * column - taken * from; returns the product of the new column with `next`.
  const auto pass = [&](float* column, double factor, double taken, const float* from, const float* next) {
    double sums[kMostPieces] = {};
    for_ranges(queue, n, task, [&](int64_t begin, int64_t end) {
      for (; begin < end; begin += step) {
        sums[begin / step] = take_and_multiply({.column = column + begin,
                                                .factor = factor,
                                                .taken = taken,
                                                .from = offset(from, begin),
                                                .next = next + begin,
                                                .n = static_cast<size_t>(std::min(step, end - begin))});
      }
    });
    double sum = 0;
    for (int64_t i = 0; i < pieces; ++i) sum += sums[i];
    return sum;
  };
  for (size_t j = 0; j < count; ++j) {
    float* const column = columns + j * rows;
    const double before = std::sqrt(pass(column, 1, 0, nullptr, column));
    double product = j == 0 ? before * before : pass(column, 1, 0, nullptr, columns);
    for (size_t i = 0; i < 2 * j; ++i) {  // all columns before it, twice
      const size_t next = i + 1 < 2 * j ? (i + 1) % j : j;
      product = pass(column, 1, product, columns + i % j * rows, columns + next * rows);
    }
    const double left = std::sqrt(product);
    if (left > kLeast * before && std::isfinite(left)) {
      (void)pass(column, 1 / left, 0, nullptr, column);
    } else {
      std::fill_n(column, rows, 0.0F);
    }
  }
}

}  // namespace gradtune::compress
