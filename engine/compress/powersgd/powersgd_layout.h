// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The matrices that `powersgd` compresses, and the places of their factors (powersgd.cc), for the host and for
// devices. Internal to engine/compress.
#pragma once

#include "engine/compress/powersgd/matrix_kernels.h"
#include "engine/compress/shared.h"

namespace gradtune::compress {

// The layout of the elements of an extent in payloads.
class PowerSgdLayout {
 public:
  // A matrix, and the offsets of its narrow factors and of products (orthonormal.h), in numbers.
  struct Factors {
    core::Matrix matrix;
    int64_t p_at, q_at, products_at;
  };

  PowerSgdLayout(const core::CompressorSpec& spec, const core::Extent& extent)
      : rank_(static_cast<int64_t>(spec.parameter)), extent_(extent), plain_(extent.numel) {
    for (const core::Matrix& matrix : extent.matrices) {
      if (!is_compressed(matrix)) continue;
      rows_ += matrix.rows;
      columns_ += matrix.columns;
      plain_ -= matrix.rows * matrix.columns;
      products_ += product_numbers(matrix.rows, rank_);
      most_partials_ = std::max(most_partials_, partials(matrix) * matrix.columns);
      widest_ = std::max(widest_, matrix.columns);
    }
  }

  int64_t rank() const { return rank_; }
  int64_t p_numbers() const { return rank_ * rows_; }
  int64_t q_numbers() const { return rank_ * columns_; }
  int64_t plain() const { return plain_; }
  int64_t payload_bytes(int round) const { return 4 * (round == 0 ? p_numbers() : q_numbers() + plain_); }
  // The rounds of a step pass on P, orthonormal, and the sum of Q. Products of columns follow in two places, because
  // a device reads those of one pass while it writes those of the next.
  int64_t products_begin() const { return round_up(4 * (p_numbers() + q_numbers()), 16); }
  int64_t round_bytes() const { return products_begin() + 2 * 8 * products_; }
  int64_t products() const { return products_; }
  int64_t scratch_bytes() const { return 4 * rank_ * std::max(padded(widest_), most_partials_); }

  // Calls visit(factors) for each matrix that is compressed.
  template <class Visit>
  void for_matrices(const Visit& visit) const {
    int64_t p_at = 0, q_at = 0, products_at = 0;
    for (const core::Matrix& matrix : extent_.matrices) {
      if (!is_compressed(matrix)) continue;
      visit(Factors{matrix, p_at, q_at, products_at});
      p_at += rank_ * matrix.rows;
      q_at += rank_ * matrix.columns;
      products_at += product_numbers(matrix.rows, rank_);
    }
  }

  // Calls visit(begin, end, at) for the ranges of elements between compressed matrices; `at` is the number of such
  // elements before the range.
  template <class Visit>
  void for_plain(const Visit& visit) const {
    int64_t begin = 0, at = 0;
    const auto up_to = [&](int64_t end, int64_t next) {
      if (begin < end) visit(begin, end, at);
      at += end - begin;
      begin = next;
    };
    for_matrices([&](const Factors& of) { up_to(of.matrix.begin, of.matrix.end()); });
    up_to(extent_.numel, extent_.numel);
  }

  // The distance from a column of Q to the next one. With a power of two the columns would map to the same L1 cache
  // sets as each other and as the rows of M.
  static int64_t padded(int64_t columns) { return round_up(columns, kLanes) + kLanes; }

  // The rows and columns of one task. Tasks of M^T P are so large that adding up their partial sums takes little time
  // beside them.
  static int64_t rows_across(const core::Matrix& matrix) { return round_up(kTaskElements / matrix.columns + 1, 4); }
  static int64_t rows_down(const core::Matrix& matrix) {
    return std::max<int64_t>(256, 4 * kTaskElements / std::min(matrix.columns, kStrip));
  }
  static constexpr int64_t kStrip = 2048;
  static int64_t partials(const core::Matrix& matrix) {
    return (matrix.rows + rows_down(matrix) - 1) / rows_down(matrix);
  }

 private:
  static constexpr int64_t kTaskElements = 1 << 16;

  bool is_compressed(const core::Matrix& matrix) const {
    return 2 * rank_ * (matrix.rows + matrix.columns) <= matrix.rows * matrix.columns;
  }

  int64_t rank_;
  core::Extent extent_;
  int64_t rows_ = 0, columns_ = 0, products_ = 0, plain_, most_partials_ = 0, widest_ = 0;
};

}  // namespace gradtune::compress
