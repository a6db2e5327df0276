// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/matrix_kernels.h"

#include "engine/compress/shared.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/compress/matrix_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "engine/compress/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradtune::compress::HWY_NAMESPACE {

// Rows that are multiplied together, so that each load of q serves all of them.
inline constexpr size_t kRows = 4;
inline constexpr size_t kColumns = 1024;  // of them, at a time
inline constexpr size_t kRowsDown = 8;    // of the transposed product

HWY_INLINE double sum_lanes(const float* lanes) {
  double sum = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) sum += double{lanes[lane]};
  return sum;
}

// Adds the products of four rows and two columns of q to `sums`, of which those of a row are `stride` apart. Element i
// goes to partial sum i % kLanes whatever the vector size. `n` is a multiple of kLanes.
HWY_INLINE void add_dots(const float* rows, const float* qa, const float* qb, size_t n, double* sums_a,
                         double* sums_b) {
  const hn::CappedTag<float, kLanes> d;
  HWY_ALIGN float lanes[2 * kRows][kLanes];
  for (size_t lane = 0; lane < kLanes; lane += hn::Lanes(d)) {
    auto a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
    for (size_t i = lane; i < n; i += kLanes) {
      const auto a = hn::LoadU(d, qa + i), b = hn::LoadU(d, qb + i);
      const auto m0 = hn::LoadU(d, rows + i), m1 = hn::LoadU(d, rows + kColumns + i);
      const auto m2 = hn::LoadU(d, rows + 2 * kColumns + i), m3 = hn::LoadU(d, rows + 3 * kColumns + i);
      a0 = hn::Add(a0, hn::Mul(m0, a));
      a1 = hn::Add(a1, hn::Mul(m1, a));
      a2 = hn::Add(a2, hn::Mul(m2, a));
      a3 = hn::Add(a3, hn::Mul(m3, a));
      b0 = hn::Add(b0, hn::Mul(m0, b));
      b1 = hn::Add(b1, hn::Mul(m1, b));
      b2 = hn::Add(b2, hn::Mul(m2, b));
      b3 = hn::Add(b3, hn::Mul(m3, b));
    }
    hn::StoreU(a0, d, lanes[0] + lane);
    hn::StoreU(a1, d, lanes[1] + lane);
    hn::StoreU(a2, d, lanes[2] + lane);
    hn::StoreU(a3, d, lanes[3] + lane);
    hn::StoreU(b0, d, lanes[4] + lane);
    hn::StoreU(b1, d, lanes[5] + lane);
    hn::StoreU(b2, d, lanes[6] + lane);
    hn::StoreU(b3, d, lanes[7] + lane);
  }
  for (size_t row = 0; row < kRows; ++row) {
    sums_a[row] += sum_lanes(lanes[row]);
    sums_b[row] += sum_lanes(lanes[kRows + row]);
  }
}

uint32_t multiply_rows(const MatrixProduct& job) {
  HWY_ALIGN float tile[kRows * kColumns];
  double sums[kMaxRank + 1][kRows];  // one more, for the partner of the last column when their number is odd
  uint32_t largest = 0;
  for (size_t first = 0; first < job.rows; first += kRows) {
    const size_t rows = std::min(kRows, job.rows - first);
    std::fill_n(&sums[0][0], (kMaxRank + 1) * kRows, 0.0);
    std::fill_n(tile + rows * kColumns, (kRows - rows) * kColumns, 0.0F);
    for (size_t begin = 0; begin < job.columns; begin += kColumns) {
      const size_t count = std::min(kColumns, job.columns - begin);
      const size_t padded = (count + kLanes - 1) / kLanes * kLanes;
      // From an element to the one that takes its place in the tile: further right, or in the next rows.
      const size_t ahead = begin + kColumns < job.columns ? kColumns : kRows * job.columns - begin;
      for (size_t row = 0; row < rows; ++row) {
        const size_t at = (first + row) * job.columns + begin;
        const float* gradient = job.gradient + at;
        const float* residual = offset(job.residual, static_cast<int64_t>(at));
        float* const sum = offset(job.sum, static_cast<int64_t>(at));
        float* const to = tile + row * kColumns;
        const uint32_t seen = largest_of(count, [&](auto d, size_t i) HWY_ATTR {
          prefetch_p(d, gradient, residual, i + ahead);
          const auto p = load_p(d, gradient, residual, i);
          hn::StoreU(p, d, to + i);
          if (sum != nullptr && !job.stream) hn::StoreU(p, d, sum + i);
          return abs_bits(d, p);
        });
        if (sum != nullptr && job.stream) stream(to, sum, count * sizeof(float));
        largest = std::max(largest, seen);
        std::fill(to + count, to + padded, 0.0F);
      }
      for (size_t j = 0; j < job.rank; j += 2) {
        const float* const q = job.q + j * job.q_stride + begin;
        add_dots(tile, q, j + 1 < job.rank ? q + job.q_stride : q, padded, sums[j], sums[j + 1]);
      }
    }
    for (size_t j = 0; j < job.rank; ++j) {
      for (size_t row = 0; row < rows; ++row) {
        job.p[j * job.p_stride + first + row] = static_cast<float>(double{job.scale} * sums[j][row]);
      }
    }
  }
  if (job.stream) hwy::FlushStream();
  return largest;
}

// Adds row * p to q for one row, or for kRowsDown rows one after the other.
HWY_INLINE void add_row(const TransposedProduct& job, size_t row, size_t begin, size_t count) {
  const float* const m = job.matrix + row * job.row_stride + begin;
  for (size_t j = 0; j < job.rank; ++j) {
    const float p = job.p[j * job.p_stride + row];
    float* const q = job.q + j * job.q_stride + begin;
    for_vectors(count, [&](auto d, size_t i) HWY_ATTR {
      hn::StoreU(hn::Add(hn::LoadU(d, q + i), hn::Mul(hn::LoadU(d, m + i), hn::Set(d, p))), d, q + i);
    });
  }
}

HWY_INLINE void add_rows(const TransposedProduct& job, size_t row, size_t begin, size_t count) {
  const float* const m = job.matrix + row * job.row_stride + begin;
  const size_t stride = job.row_stride;
  for_vectors(count, [&](auto d, size_t i) HWY_ATTR {
    for (size_t ahead = kRowsDown; ahead < 2 * kRowsDown; ++ahead) prefetch(d, m + ahead * stride, i);
    const auto m0 = hn::LoadU(d, m + i), m1 = hn::LoadU(d, m + stride + i);
    const auto m2 = hn::LoadU(d, m + 2 * stride + i), m3 = hn::LoadU(d, m + 3 * stride + i);
    const auto m4 = hn::LoadU(d, m + 4 * stride + i), m5 = hn::LoadU(d, m + 5 * stride + i);
    const auto m6 = hn::LoadU(d, m + 6 * stride + i), m7 = hn::LoadU(d, m + 7 * stride + i);
    for (size_t j = 0; j < job.rank; ++j) {
      const float* const p = job.p + j * job.p_stride + row;
      float* const q = job.q + j * job.q_stride + begin + i;
      auto sum = hn::Add(hn::LoadU(d, q), hn::Mul(m0, hn::Set(d, p[0])));
      sum = hn::Add(sum, hn::Mul(m1, hn::Set(d, p[1])));
      sum = hn::Add(sum, hn::Mul(m2, hn::Set(d, p[2])));
      sum = hn::Add(sum, hn::Mul(m3, hn::Set(d, p[3])));
      sum = hn::Add(sum, hn::Mul(m4, hn::Set(d, p[4])));
      sum = hn::Add(sum, hn::Mul(m5, hn::Set(d, p[5])));
      sum = hn::Add(sum, hn::Mul(m6, hn::Set(d, p[6])));
      sum = hn::Add(sum, hn::Mul(m7, hn::Set(d, p[7])));
      hn::StoreU(sum, d, q);
    }
  });
}

void multiply_columns(const TransposedProduct& job) {
  for (size_t begin = 0; begin < job.columns; begin += kColumns) {
    const size_t count = std::min(kColumns, job.columns - begin);
    for (size_t j = 0; j < job.rank; ++j) std::fill_n(job.q + j * job.q_stride + begin, count, 0.0F);
    size_t row = 0;
    for (; row + kRowsDown <= job.rows; row += kRowsDown) add_rows(job, row, begin, count);
    for (; row < job.rows; ++row) add_row(job, row, begin, count);
  }
}

template <class D, class V>
HWY_INLINE hn::Vec<D> finished(D d, const OuterProduct& job, size_t at, V product) {
  if (job.matrix != nullptr) {
    product = hn::Sub(hn::Mul(hn::LoadU(d, job.matrix + at), hn::Set(d, job.matrix_factor)),
                      hn::Mul(product, hn::Set(d, job.product_factor)));
  }
  return job.accumulate ? hn::Add(hn::LoadU(d, job.out + at), product) : product;
}

// Of kRows rows, some columns.
HWY_INLINE void outer_tile(const OuterProduct& job, size_t row, size_t begin, size_t count, float* to,
                           size_t to_stride) {
  for_vectors(count, [&](auto d, size_t i) HWY_ATTR {
    auto v0 = hn::Zero(d), v1 = v0, v2 = v0, v3 = v0;
    for (size_t j = 0; j < job.rank; ++j) {
      const auto q = hn::LoadU(d, job.q + j * job.q_stride + begin + i);
      const float* const p = job.p + j * job.p_stride + row;
      v0 = hn::Add(v0, hn::Mul(q, hn::Set(d, p[0])));
      v1 = hn::Add(v1, hn::Mul(q, hn::Set(d, p[1])));
      v2 = hn::Add(v2, hn::Mul(q, hn::Set(d, p[2])));
      v3 = hn::Add(v3, hn::Mul(q, hn::Set(d, p[3])));
    }
    const size_t at = row * job.columns + begin + i;
    hn::StoreU(finished(d, job, at, v0), d, to + i);
    hn::StoreU(finished(d, job, at + job.columns, v1), d, to + to_stride + i);
    hn::StoreU(finished(d, job, at + 2 * job.columns, v2), d, to + 2 * to_stride + i);
    hn::StoreU(finished(d, job, at + 3 * job.columns, v3), d, to + 3 * to_stride + i);
  });
}

void outer_rows(const OuterProduct& job) {
  HWY_ALIGN float tile[kRows * kColumns];
  size_t row = 0;
  for (; row + kRows <= job.rows; row += kRows) {
    float* const out = job.out + row * job.columns;
    if (!job.stream) {
      outer_tile(job, row, 0, job.columns, out, job.columns);
      continue;
    }
    for (size_t begin = 0; begin < job.columns; begin += kColumns) {
      const size_t count = std::min(kColumns, job.columns - begin);
      outer_tile(job, row, begin, count, tile, kColumns);
      for (size_t i = 0; i < kRows; ++i)
        stream(tile + i * kColumns, out + i * job.columns + begin, count * sizeof(float));
    }
  }
  for (; row < job.rows; ++row) {
    for_vectors(job.columns, [&](auto d, size_t i) HWY_ATTR {
      auto v = hn::Zero(d);
      for (size_t j = 0; j < job.rank; ++j) {
        v = hn::Add(v, hn::Mul(hn::LoadU(d, job.q + j * job.q_stride + i), hn::Set(d, job.p[j * job.p_stride + row])));
      }
      const size_t at = row * job.columns + i;
      hn::StoreU(finished(d, job, at, v), d, job.out + at);
    });
  }
  if (job.stream) hwy::FlushStream();
}

double pass_column(const ColumnPass& job) {
  const ColumnPass of = job;  // what the compiler keeps in registers no store can change
  const bool changes = of.from != nullptr || of.factor != 1;
  const hn::CappedTag<double, 8> d;
  const hn::Rebind<float, decltype(d)> df;
  HWY_ALIGN double sums[8];
  const size_t whole = of.n / 8 * 8;
  for (size_t lane = 0; lane < 8; lane += hn::Lanes(d)) {
    auto sum = hn::Zero(d);
    for (size_t i = lane; i < whole; i += 8) {
      auto value = hn::LoadU(df, of.column + i);
      if (changes) {
        auto exact = hn::Mul(hn::PromoteTo(d, value), hn::Set(d, of.factor));
        if (of.from != nullptr) {
          exact = hn::Sub(exact, hn::Mul(hn::PromoteTo(d, hn::LoadU(df, of.from + i)), hn::Set(d, of.taken)));
        }
        value = hn::DemoteTo(df, exact);
        hn::StoreU(value, df, of.column + i);
      }
      const auto next = hn::LoadU(df, of.next + i);  // behind the store, since it may be the column
      sum = hn::Add(sum, hn::Mul(hn::PromoteTo(d, value), hn::PromoteTo(d, next)));
    }
    hn::StoreU(sum, d, sums + lane);
  }
  for (size_t i = whole; i < of.n; ++i) {
    double exact = double{of.column[i]} * of.factor;
    if (of.from != nullptr) exact -= double{of.from[i]} * of.taken;
    of.column[i] = static_cast<float>(exact);
    sums[i % 8] += double{of.column[i]} * double{of.next[i]};
  }
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradtune::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradtune::compress {

HWY_EXPORT(multiply_rows);
HWY_EXPORT(multiply_columns);
HWY_EXPORT(outer_rows);
HWY_EXPORT(pass_column);

uint32_t multiply(const MatrixProduct& job) { return HWY_DYNAMIC_DISPATCH(multiply_rows)(job); }

void multiply_transposed(const TransposedProduct& job) { HWY_DYNAMIC_DISPATCH(multiply_columns)(job); }

double take_and_multiply(const ColumnPass& job) { return HWY_DYNAMIC_DISPATCH(pass_column)(job); }

void multiply_outer(const OuterProduct& job) { HWY_DYNAMIC_DISPATCH(outer_rows)(job); }

}  // namespace gradtune::compress
#endif
