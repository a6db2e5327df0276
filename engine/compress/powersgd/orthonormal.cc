// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/powersgd/orthonormal.h"

#include <algorithm>
#include <cmath>

#include "engine/compress/powersgd/matrix_kernels.h"
#include "engine/compress/shared.h"

namespace gradtune::compress {
namespace {

// R of the products of all pieces. A device has the same order of additions (powersgd.cu).
void factorise(const double* products, int64_t pieces, int64_t count, Triangle& r) {
  const int64_t pairs = column_pairs(count);
  std::copy_n(products, pairs, r.numbers);
  for (int64_t piece = 1; piece < pieces; ++piece) {
    for (int64_t pair = 0; pair < pairs; ++pair) r.numbers[pair] += products[piece * pairs + pair];
  }
  double least[kMaxRank];
  for (int64_t j = 0; j < count; ++j) least[j] = kLeastLeft * kLeastLeft * r.numbers[pair_at(j, j)];
  for (int64_t k = 0; k < count; ++k) {
    const double left = r.numbers[pair_at(k, k)];
    const bool is_good = left > least[k] && std::isfinite(left);
    r.inverses[k] = is_good ? 1 / std::sqrt(left) : 0;
    for (int64_t j = k + 1; j < count; ++j) {
      double& of_row = r.numbers[pair_at(k, j)];
      of_row = is_good ? of_row * r.inverses[k] : 0;
      for (int64_t i = k + 1; i <= j; ++i) r.numbers[pair_at(i, j)] -= r.numbers[pair_at(k, i)] * of_row;
    }
  }
}

}  // namespace

void orthonormalise(float* columns, size_t rows, size_t count, double* products, HostQueue& queue) {
  const auto n = static_cast<int64_t>(rows), numbers = column_pairs(static_cast<int64_t>(count));
  const int64_t step = column_piece(n), pieces = column_pieces(n);
  // Calls body(the columns of a piece, their products).
  const auto for_pieces = [&](const auto& body) {
    for_ranges(queue, n, round_up(kBlockElements, step), [&](int64_t begin, int64_t end) {
      for (; begin < end; begin += step) {
        const auto some = static_cast<size_t>(std::min(step, end - begin));
        body(Columns{.at = columns + begin, .stride = rows, .rows = some, .count = count},
             products + begin / step * numbers);
      }
    });
  };
  Triangle r;
  for_pieces([](const Columns& of, double* to) { multiply_pairs(of, to); });
  factorise(products, pieces, static_cast<int64_t>(count), r);
  for_pieces([&](const Columns& of, double* to) {
    divide(of, r);
    multiply_pairs(of, to);
  });
  factorise(products, pieces, static_cast<int64_t>(count), r);
  for_pieces([&](const Columns& of, double*) { divide(of, r); });
}

}  // namespace gradtune::compress
