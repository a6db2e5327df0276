// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/powersgd/matrix_kernels.h"

#include "engine/compress/shared.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/compress/powersgd/matrix_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "engine/compress/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradtune::compress::HWY_NAMESPACE {

// --- p = M q, for kRows rows and kFew columns of q at a time: each load of one serves all of the other.

constexpr size_t kRows = 2;

// The number of columns whose products are added up in single precision. Element i of them goes to partial sum i %
// kLanes, whatever the vector size. The partial sums are added up in double precision.
constexpr size_t kColumns = 4 * kTile;

HWY_INLINE double sum_lanes(const float* lanes) {
  static_assert(kLanes == 16);
  const hn::CappedTag<double, 8> d;
  const hn::Rebind<float, decltype(d)> df;
  HWY_ALIGN double sums[8];
  for (size_t i = 0; i < 8; i += hn::Lanes(d)) {
    const auto first = hn::PromoteTo(d, hn::Load(df, lanes + i)),
               second = hn::PromoteTo(d, hn::Load(df, lanes + 8 + i));
    hn::Store(hn::Add(first, second), d, sums + i);
  }
  return sum_of_eight(sums);
}

using RowLanes = hn::CappedTag<float, kLanes>;

// Partial sums of a column of q.
struct Dots {
  HWY_ALIGN float of_row[kRows][kLanes];
};

// Adds the products of n elements, a multiple of kLanes, of kRows rows and kCount columns of q to `dots`. `load`(d,
// row, i) returns elements of M.
template <size_t kCount, class M>
HWY_INLINE void add_dots(const M& m, const float* q, size_t q_stride, size_t n, Dots* dots) {
  const RowLanes d;
  for (size_t lane = 0; lane < kLanes; lane += hn::Lanes(d)) {
    const auto sum_of = [&](size_t row, size_t j) HWY_ATTR { return hn::Load(d, dots[j].of_row[row] + lane); };
    auto a0 = sum_of(0, 0), b0 = sum_of(1, 0), a1 = a0, b1 = b0, a2 = a0, b2 = b0, a3 = a0, b3 = b0;
    if constexpr (kCount > 1) a1 = sum_of(0, 1), b1 = sum_of(1, 1);
    if constexpr (kCount > 2) a2 = sum_of(0, 2), b2 = sum_of(1, 2);
    if constexpr (kCount > 3) a3 = sum_of(0, 3), b3 = sum_of(1, 3);
    for (size_t i = lane; i < n; i += kLanes) {
      const auto a = m.load(d, 0, i), b = m.load(d, 1, i);
      const auto add = [&](size_t j, auto& sum_a, auto& sum_b) HWY_ATTR {
        const auto factor = hn::LoadU(d, q + j * q_stride + i);
        sum_a = hn::Add(sum_a, hn::Mul(a, factor));
        sum_b = hn::Add(sum_b, hn::Mul(b, factor));
      };
      add(0, a0, b0);
      if constexpr (kCount > 1) add(1, a1, b1);
      if constexpr (kCount > 2) add(2, a2, b2);
      if constexpr (kCount > 3) add(3, a3, b3);
    }
    const auto keep = [&](size_t j, auto sum_a, auto sum_b) HWY_ATTR {
      hn::Store(sum_a, d, dots[j].of_row[0] + lane);
      hn::Store(sum_b, d, dots[j].of_row[1] + lane);
    };
    keep(0, a0, b0);
    if constexpr (kCount > 1) keep(1, a1, b1);
    if constexpr (kCount > 2) keep(2, a2, b2);
    if constexpr (kCount > 3) keep(3, a3, b3);
  }
}

template <class M>
HWY_INLINE void add_dots(const M& m, const float* q, size_t q_stride, size_t columns, size_t n, Dots* dots) {
  with_count(std::min(columns, kFew), [&](auto of) HWY_ATTR { add_dots<of()>(m, q, q_stride, n, dots); });
}

// A tile of rows that was read before.
struct Rows {
  const float* at[kRows];

  template <class D>
  HWY_INLINE hn::Vec<D> load(D d, size_t row, size_t i) const {
    return hn::LoadU(d, at[row] + i);
  }
};

// A tile of rows that is read, and kept.
struct NewRows {
  const float* gradient[kRows];
  const float* residual[kRows];  // or null
  Place kept[kRows];             // or null
  size_t ahead;                  // distance to the element that is prefetched

  template <class D>
  HWY_INLINE hn::Vec<D> load(D d, size_t row, size_t i) const {
    prefetch_p(d, gradient[row], residual[row], i + ahead);
    const auto p = load_p(d, gradient[row], residual[row], i);
    if (kept[row].to != nullptr) kept[row].store(p, d, i);
    return p;
  }
};

// Adds the products of two rows, which may be the same one, and a tile of their columns to `dots`. `ahead` is the
// distance to the element that is prefetched.
HWY_INLINE void multiply_tile(const MatrixProduct& job, const size_t (&rows)[kRows], size_t begin, size_t count,
                              size_t ahead, Dots* dots) {
  HWY_ALIGN float tile[kRows][kTile];
  // Stores bypass the caches if vectors make whole cache lines and nothing is read again.
  const bool is_direct = job.sum != nullptr && job.stream && job.rank <= kFew && job.columns % kLanes == 0 &&
                         reinterpret_cast<uintptr_t>(job.sum) % 64 == 0;
  const bool streams = job.sum != nullptr && job.stream && !is_direct;
  NewRows from{.gradient = {}, .residual = {}, .kept = {}, .ahead = ahead};
  Rows again;
  for (size_t row = 0; row < kRows; ++row) {
    const size_t at = rows[row] * job.columns + begin;
    from.gradient[row] = job.gradient + at;
    from.residual[row] = offset(job.residual, at);
    from.kept[row] = {streams ? tile[row] : offset(job.sum, at), is_direct};
    again.at[row] = job.sum == nullptr ? from.gradient[row] : from.kept[row].to;
  }
  const float* const q = job.q + begin;
  const size_t whole = count / kLanes * kLanes;
  add_dots(from, q, job.q_stride, job.rank, whole, dots);
  for (size_t j = kFew; j < job.rank; j += kFew) {
    add_dots(again, q + j * job.q_stride, job.q_stride, job.rank - j, whole, dots + j);
  }
  if (whole < count) {
    HWY_ALIGN float rest[kRows][kLanes] = {};
    for (size_t row = 0; row < kRows; ++row) {
      for (size_t i = whole; i < count; ++i) {
        hn::StoreU(from.load(hn::CappedTag<float, 1>(), row, i), hn::CappedTag<float, 1>(), rest[row] + i - whole);
      }
    }
    Rows padded{rest[0], rest[1]};
    for (size_t j = 0; j < job.rank; j += kFew) {
      add_dots(padded, q + whole + j * job.q_stride, job.q_stride, job.rank - j, kLanes, dots + j);
    }
  }
  for (size_t row = 0; streams && row < kRows; ++row) {
    stream(tile[row], job.sum + rows[row] * job.columns + begin, count * sizeof(float));
  }
}

// The number of rows that a part of q serves, two at a time, while it is in the L1 cache.
constexpr size_t kRowsAcross = 16;

void multiply_rows(const MatrixProduct& job) {
  Dots dots[kMaxRank];
  double sums[kMaxRank][kRowsAcross];
  for (size_t top = 0; top < job.rows; top += kRowsAcross) {
    const size_t bottom = std::min(job.rows, top + kRowsAcross);
    std::fill_n(&sums[0][0], job.rank * kRowsAcross, 0.0);
    for (size_t from = 0; from < job.columns; from += kColumns) {
      const size_t to = std::min(job.columns, from + kColumns);
      for (size_t first = top; first < bottom; first += kRows) {
        const size_t second = std::min(first + 1, bottom - 1);  // if the number is odd, the last row is both
        // Prefetches the same columns of the next rows, or the next columns of the first rows, or the first columns
        // below.
        size_t next = (first + kRows) * job.columns + from;
        if (first + kRows >= bottom) next = to < job.columns ? top * job.columns + to : bottom * job.columns;
        const size_t ahead = next - (first * job.columns + from);
        std::fill_n(&dots[0].of_row[0][0], job.rank * kRows * kLanes, 0.0F);
        for (size_t begin = from; begin < to; begin += kTile) {
          multiply_tile(job, {first, second}, begin, std::min(kTile, to - begin), ahead, dots);
        }
        for (size_t j = 0; j < job.rank; ++j) {
          sums[j][first - top] += sum_lanes(dots[j].of_row[0]);
          if (second > first) sums[j][second - top] += sum_lanes(dots[j].of_row[1]);
        }
      }
    }
    for (size_t j = 0; j < job.rank; ++j) {
      float* const p = job.p + j * job.p_stride;
      for (size_t row = top; row < bottom; ++row) p[row] = static_cast<float>(double{job.scale} * sums[j][row - top]);
    }
  }
  if (job.stream) hwy::FlushStream();
}

// --- q = M^T p.

constexpr size_t kRowsDown = 4;

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
    for (size_t j = 0; j < job.rank; ++j) {
      const float* const p = job.p + j * job.p_stride + row;
      float* const q = job.q + j * job.q_stride + begin + i;
      auto sum = hn::Add(hn::LoadU(d, q), hn::Mul(m0, hn::Set(d, p[0])));
      sum = hn::Add(sum, hn::Mul(m1, hn::Set(d, p[1])));
      sum = hn::Add(sum, hn::Mul(m2, hn::Set(d, p[2])));
      sum = hn::Add(sum, hn::Mul(m3, hn::Set(d, p[3])));
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

// --- Outer products, for kOuterRows rows and a tile at a time.

constexpr size_t kOuterRows = 4, kOuterColumns = kTile / kOuterRows;

// Computes `count` columns of kOuterRows rows.
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
    for (size_t r = kOuterRows; job.matrix != nullptr && r < 2 * kOuterRows; ++r) {
      prefetch(d, job.matrix + r * job.columns, at);
    }
    hn::StoreU(finished(d, job, at, v0), d, to + i);
    hn::StoreU(finished(d, job, at + job.columns, v1), d, to + to_stride + i);
    hn::StoreU(finished(d, job, at + 2 * job.columns, v2), d, to + 2 * to_stride + i);
    hn::StoreU(finished(d, job, at + 3 * job.columns, v3), d, to + 3 * to_stride + i);
  });
}

void outer_rows(const OuterProduct& job) {
  HWY_ALIGN float tile[kTile];
  size_t row = 0;
  for (; row + kOuterRows <= job.rows; row += kOuterRows) {
    float* const out = job.out + row * job.columns;
    if (!job.stream) {
      outer_tile(job, row, 0, job.columns, out, job.columns);
      continue;
    }
    for (size_t begin = 0; begin < job.columns; begin += kOuterColumns) {
      const size_t count = std::min(kOuterColumns, job.columns - begin);
      outer_tile(job, row, begin, count, tile, kOuterColumns);
      for (size_t i = 0; i < kOuterRows; ++i)
        stream(tile + i * kOuterColumns, out + i * job.columns + begin, count * sizeof(float));
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

// --- Products of pairs of columns, and columns R^-1.

// The products of a column with kCount others, which lie one behind the other as the products do.
template <size_t kCount>
HWY_INLINE void multiply_few(const Columns& of, size_t first, size_t column, double* products) {
  const hn::CappedTag<double, 8> d;
  const hn::Rebind<float, decltype(d)> df;
  HWY_ALIGN double sums[kCount][8];
  const float* const one = of.at + column * of.stride;
  const float* const others = of.at + first * of.stride;
  const size_t whole = of.rows / 8 * 8;
  for (size_t lane = 0; lane < 8; lane += hn::Lanes(d)) {
    auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
    for (size_t i = lane; i < whole; i += 8) {
      const auto value = hn::PromoteTo(d, hn::LoadU(df, one + i));
      const auto product = [&](size_t k) HWY_ATTR {
        return hn::Mul(value, hn::PromoteTo(d, hn::LoadU(df, others + k * of.stride + i)));
      };
      s0 = hn::Add(s0, product(0));
      if constexpr (kCount > 1) s1 = hn::Add(s1, product(1));
      if constexpr (kCount > 2) s2 = hn::Add(s2, product(2));
      if constexpr (kCount > 3) s3 = hn::Add(s3, product(3));
    }
    hn::StoreU(s0, d, sums[0] + lane);
    if constexpr (kCount > 1) hn::StoreU(s1, d, sums[1] + lane);
    if constexpr (kCount > 2) hn::StoreU(s2, d, sums[2] + lane);
    if constexpr (kCount > 3) hn::StoreU(s3, d, sums[3] + lane);
  }
  for (size_t k = 0; k < kCount; ++k) {
    for (size_t i = whole; i < of.rows; ++i) {
      sums[k][i % 8] += double{one[i]} * double{others[k * of.stride + i]};
    }
    products[k] = sum_of_eight(sums[k]);
  }
}

void multiply_all_pairs(const Columns& of, double* products) {
  for (size_t column = 0; column < of.count; ++column) {
    for (size_t first = 0; first <= column; first += kFew) {
      double* const to = products + pair_at(static_cast<int64_t>(first), static_cast<int64_t>(column));
      with_count(std::min(kFew, column + 1 - first),
                 [&](auto count) HWY_ATTR { multiply_few<count()>(of, first, column, to); });
    }
  }
}

// Divides kVectors vectors of rows. `kept` has room for the rows of all columns before they are rounded.
template <size_t kVectors, class D>
HWY_INLINE void divide_rows(D d, const Columns& of, const Triangle& r, size_t row, double* kept) {
  const hn::Rebind<float, D> df;
  const size_t n = hn::Lanes(d);
  const double* numbers = r.numbers;
  for (size_t j = 0; j < of.count; numbers += ++j) {
    float* const column = of.at + j * of.stride + row;
    double* const to = kept + j * kVectors * n;
    const auto finish = [&](size_t v, auto value) HWY_ATTR {
      hn::StoreU(value, d, to + v * n);
      hn::StoreU(hn::DemoteTo(df, value), df, column + v * n);
    };
    auto v0 = hn::Zero(d), v1 = v0, v2 = v0, v3 = v0;
    if (r.inverses[j] != 0) {
      const auto load = [&](size_t v) HWY_ATTR { return hn::PromoteTo(d, hn::LoadU(df, column + v * n)); };
      v0 = load(0);
      if constexpr (kVectors > 1) v1 = load(1), v2 = load(2), v3 = load(3);
      for (size_t i = 0; i < j; ++i) {
        const auto factor = hn::Set(d, numbers[i]);
        const auto taken = [&](size_t v)
                               HWY_ATTR { return hn::Mul(hn::LoadU(d, kept + (i * kVectors + v) * n), factor); };
        v0 = hn::Sub(v0, taken(0));
        if constexpr (kVectors > 1) v1 = hn::Sub(v1, taken(1)), v2 = hn::Sub(v2, taken(2)), v3 = hn::Sub(v3, taken(3));
      }
      const auto inverse = hn::Set(d, r.inverses[j]);
      v0 = hn::Mul(v0, inverse);
      if constexpr (kVectors > 1) v1 = hn::Mul(v1, inverse), v2 = hn::Mul(v2, inverse), v3 = hn::Mul(v3, inverse);
    }
    finish(0, v0);
    if constexpr (kVectors > 1) finish(1, v1), finish(2, v2), finish(3, v3);
  }
}

void divide_columns(const Columns& of, const Triangle& r) {
  constexpr size_t kVectors = 4;
  const hn::CappedTag<double, 8> d;
  const size_t n = hn::Lanes(d);
  HWY_ALIGN double kept[kMaxRank * kVectors * 8];
  size_t row = 0;
  for (; row + kVectors * n <= of.rows; row += kVectors * n) divide_rows<kVectors>(d, of, r, row, kept);
  for (; row < of.rows; ++row) divide_rows<1>(hn::CappedTag<double, 1>(), of, r, row, kept);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradtune::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradtune::compress {

HWY_EXPORT(multiply_rows);
HWY_EXPORT(multiply_columns);
HWY_EXPORT(outer_rows);
HWY_EXPORT(multiply_all_pairs);
HWY_EXPORT(divide_columns);

void multiply(const MatrixProduct& job) { HWY_DYNAMIC_DISPATCH(multiply_rows)(job); }

void multiply_transposed(const TransposedProduct& job) { HWY_DYNAMIC_DISPATCH(multiply_columns)(job); }

void multiply_pairs(const Columns& of, double* products) { HWY_DYNAMIC_DISPATCH(multiply_all_pairs)(of, products); }

void divide(const Columns& of, const Triangle& r) { HWY_DYNAMIC_DISPATCH(divide_columns)(of, r); }

void multiply_outer(const OuterProduct& job) { HWY_DYNAMIC_DISPATCH(outer_rows)(job); }

}  // namespace gradtune::compress
#endif
