// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// PowerSGD (Vogels, Karimireddy, Jaggi: PowerSGD: Practical Low-Rank Gradient Compression for Distributed
// Optimization; NeurIPS 2019) sends matrices M as products of narrow ones. In the first round ranks add up P = M Q,
// whose columns are then made orthonormal. In the second round they add up Q = M^T P, and P Q^T approximates M. This
// is one step of a power iteration that begins where the previous step ended: the sum Q is the state of a bucket
// (warm start). Columns of Q that are zero are drawn anew, on all ranks alike, since they would stay zero for ever.
// All columns are zero at first, and a matrix that was zero for a step leaves zero columns. With error feedback P P^T
// M of a matrix is sent, and the rest, which is orthogonal to it, is kept.
//
// A matrix is compressed if its factors have at most half of its numbers. Other matrices, and vectors, are sent in
// fp32 in the second round. A tensor of several dimensions is a matrix whose rows belong to the dimension that
// changes slowest in memory, as a rule the first. A slice of a tensor is a matrix of the rows that are whole in it.
//
// Payloads, fp32: round 0 has the columns of all P. Round 1 has those of all Q, and then all elements that belong to
// no compressed matrix. Bytes moved per element: 12 by the first encode (reads gradient and residual, writes their
// sum), 12 by the second (reads the sum twice, writes the next residual), 4 by the last decode. Without error
// feedback these are 4, 4 and 4. Multiplications: 2 * rank for each encode, and 1 * rank for the error and for the
// last decode.
//
// Accuracy: tests/bench/results/README.md.
#include <bit>
#include <cmath>

#include "engine/compress/powersgd/matrix_kernels.h"
#include "engine/compress/powersgd/orthonormal.h"
#include "engine/compress/powersgd/powersgd_layout.h"
#include "engine/compress/shared.h"
#include "engine/compress/simd/dense_kernels.h"

namespace gradtune::compress {
namespace {

using Layout = PowerSgdLayout;
using Factors = Layout::Factors;

// A random number from -1 to 1 for a column of Q. It is drawn by the position of an element of the matrix, as Q has
// fewer numbers than M.
float draw(const Random& random, int64_t element) {
  return static_cast<float>(static_cast<int32_t>(shared_random(random, element)[0])) * 0x1p-31F;
}

bool all_finite(const float* values, int64_t n) {
  uint32_t worst = 0;
  for (int64_t i = 0; i < n; ++i) worst = std::max(worst, std::bit_cast<uint32_t>(values[i]) & kInfinityBits);
  return worst != kInfinityBits;
}

class PowerSgd final : public HostCompressor {
 public:
  PowerSgd(core::CompressorSpec spec, const core::CompressorTraits& traits) : HostCompressor(std::move(spec), traits) {}

  int64_t scratch_bytes(const core::Extent& extent) const override { return Layout(spec(), extent).scratch_bytes(); }
  int64_t round_bytes(const core::Extent& extent) const override { return Layout(spec(), extent).round_bytes(); }
  int64_t state_bytes(const core::Extent& extent) const override { return 4 * Layout(spec(), extent).q_numbers(); }

  bool encode_on_host(const Encode& job, HostQueue& queue) const override {
    const Layout layout(spec(), {static_cast<int64_t>(job.gradient.size()), job.work.matrices});
    return job.work.round == 0 ? encode_p(job, layout, queue) : encode_q(job, layout, queue);
  }

  Rejected decode_on_host(const Decode& job, HostQueue& queue) const override {
    const Layout layout(spec(), {static_cast<int64_t>(job.out.size()), job.work.matrices});
    if (Rejected bad = check_sizes(job.payloads, layout.payload_bytes(job.work.round))) return bad;
    if (job.work.round == 0) {
      decode_p(job, layout, queue);
    } else {
      decode_q(job, layout, queue);
    }
    return {};
  }

 private:
  // In the memory that one round leaves to the next: P, orthonormal, and the sum of Q.
  static float* p_of(const Work& work) { return reinterpret_cast<float*>(work.round_memory); }
  static float* q_of(const Work& work, const Layout& layout) { return p_of(work) + layout.p_numbers(); }

  // Computes P of gradient + residual, and stores that sum in the place of the next residual.
  bool encode_p(const Encode& job, const Layout& layout, HostQueue& queue) const {
    auto* const p = reinterpret_cast<float*>(job.payload.data());
    layout.for_matrices([&](const Factors& of) {
      const int64_t columns = of.matrix.columns, stride = Layout::padded(columns);
      const float* const q = start(job, layout, of, stride);
      for_ranges(queue, of.matrix.rows, Layout::rows_across(of.matrix), [&](int64_t begin, int64_t end) {
        const int64_t at = of.matrix.begin + begin * columns;
        multiply({.gradient = job.gradient.data() + at,
                  .residual = offset(job.residual, at),
                  .sum = job.residual == nullptr ? nullptr : job.residual_next + at,
                  .stream = job.gradient.size() * sizeof(float) >= kStreamBytes,
                  .rows = static_cast<size_t>(end - begin),
                  .columns = static_cast<size_t>(columns),
                  .q = q,
                  .q_stride = static_cast<size_t>(stride),
                  .rank = static_cast<size_t>(layout.rank()),
                  .scale = job.scale,
                  .p = p + of.p_at + begin,
                  .p_stride = static_cast<size_t>(of.matrix.rows)});
      });
    });
    // An element that is not finite makes its row of P not finite, whatever Q is: zero times infinity is NaN.
    return all_finite(p, layout.p_numbers());
  }

  // The initial Q of this step, padded, in scratch.
  static const float* start(const Encode& job, const Layout& layout, const Factors& of, int64_t stride) {
    auto* const q = reinterpret_cast<float*>(job.scratch.data());
    const int64_t columns = of.matrix.columns;
    const float* const state = offset(reinterpret_cast<const float*>(job.work.state), of.q_at);
    for (int64_t j = 0; j < layout.rank(); ++j) {
      float* const column = q + j * stride;
      const float* const before = offset(state, j * columns);
      std::fill(column + columns, column + stride, 0.0F);
      if (before != nullptr && std::any_of(before, before + columns, [](float value) { return value != 0; })) {
        std::copy_n(before, columns, column);
        continue;
      }
      const int64_t first = job.work.first_element + of.matrix.begin + j * columns;
      for (int64_t c = 0; c < columns; ++c) column[c] = draw(job.work.random, first + c);
    }
    return q;
  }

  static void decode_p(const Decode& job, const Layout& layout, HostQueue& queue) {
    float* const p = p_of(job.work);
    auto* const products = reinterpret_cast<double*>(job.work.round_memory + layout.products_begin());
    add_up(job.payloads, p, layout.p_numbers(), queue);
    layout.for_matrices([&](const Factors& of) {
      orthonormalise(p + of.p_at, static_cast<size_t>(of.matrix.rows), static_cast<size_t>(layout.rank()),
                     products + of.products_at, queue);
    });
  }

  bool encode_q(const Encode& job, const Layout& layout, HostQueue& queue) const {
    auto* const q = reinterpret_cast<float*>(job.payload.data());
    layout.for_matrices([&](const Factors& of) {
      const float* const p = p_of(job.work) + of.p_at;
      const float* const matrix = (job.residual == nullptr ? job.gradient.data() : job.residual_next) + of.matrix.begin;
      project(job, layout, of, matrix, p, q + of.q_at, queue);
      if (job.residual_next == nullptr) return;
      add_product(layout, of, p, q + of.q_at, queue,
                  {.matrix = matrix,
                   .matrix_factor = unsent_factor(job),
                   .product_factor = job.error_scale,
                   .out = job.residual_next + of.matrix.begin,
                   .accumulate = job.add_to_residual_next,
                   .stream = false});  // written in the place of the matrix
    });
    Largest largest;
    float* const plain = q + layout.q_numbers();
    layout.for_plain([&](int64_t first, int64_t last, int64_t at) {
      for_ranges(queue, last - first, kBlockElements, [&](int64_t begin, int64_t end) {
        largest.add(encode_dense(core::DType::f32, run_of(job, first + begin, first + end),
                                 reinterpret_cast<std::byte*>(plain + at + begin), /*stream=*/false));
      });
    });
    return largest.get() < kInfinityBits && all_finite(q, layout.q_numbers());
  }

  // q = scale * M^T p, for strips of columns and runs of rows. The partial sums of runs are added up in order.
  static void project(const Encode& job, const Layout& layout, const Factors& of, const float* matrix, const float* p,
                      float* q, HostQueue& queue) {
    const int64_t rows = of.matrix.rows, columns = of.matrix.columns, rank = layout.rank();
    const int64_t run = Layout::rows_down(of.matrix), runs = Layout::partials(of.matrix);
    const int64_t strips = (columns + Layout::kStrip - 1) / Layout::kStrip;
    auto* const partials = reinterpret_cast<float*>(job.scratch.data());
    for_blocks(queue, runs * strips, [&](int64_t block) {
      const int64_t row = block / strips * run, column = block % strips * Layout::kStrip;
      multiply_transposed({.matrix = matrix + row * columns + column,
                           .row_stride = static_cast<size_t>(columns),
                           .rows = static_cast<size_t>(std::min(run, rows - row)),
                           .columns = static_cast<size_t>(std::min(Layout::kStrip, columns - column)),
                           .p = p + row,
                           .p_stride = static_cast<size_t>(rows),
                           .rank = static_cast<size_t>(rank),
                           .q = partials + block / strips * rank * columns + column,
                           .q_stride = static_cast<size_t>(columns)});
    });
    for_ranges(queue, rank * columns, kBlockElements, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) q[i] = partials[i];
      for (int64_t part = 1; part < runs; ++part) {
        const float* const more = partials + part * rank * columns;
        for (int64_t i = begin; i < end; ++i) q[i] += more[i];
      }
      for (int64_t i = begin; i < end; ++i) q[i] *= job.scale;
    });
  }

  static void decode_q(const Decode& job, const Layout& layout, HostQueue& queue) {
    float* const q = q_of(job.work, layout);
    add_up(job.payloads, q, layout.q_numbers(), queue);
    if (job.work.state_next != nullptr) {
      std::copy_n(q, layout.q_numbers(), reinterpret_cast<float*>(job.work.state_next));
    }
    layout.for_matrices([&](const Factors& of) {
      add_product(layout, of, p_of(job.work) + of.p_at, q + of.q_at, queue,
                  {.matrix = nullptr,
                   .matrix_factor = 0,
                   .product_factor = 0,
                   .out = job.out.data() + of.matrix.begin,
                   .accumulate = job.accumulate,
                   .stream = job.out.size_bytes() >= kStreamBytes});
    });
    layout.for_plain([&](int64_t first, int64_t last, int64_t at) {
      for_ranges(queue, last - first, kBlockElements, [&](int64_t begin, int64_t end) {
        decode_dense(core::DType::f32, {.payloads = job.payloads,
                                        .first = static_cast<size_t>(layout.q_numbers() + at + begin),
                                        .out = job.out.data() + first + begin,
                                        .n = static_cast<size_t>(end - begin),
                                        .accumulate = job.accumulate,
                                        .stream = false});
      });
    });
  }

  // Adds up the numbers at the front of all payloads.
  static void add_up(std::span<const std::span<const std::byte>> payloads, float* sums, int64_t n, HostQueue& queue) {
    for_ranges(queue, n, kBlockElements, [&](int64_t begin, int64_t end) {
      std::fill(sums + begin, sums + end, 0.0F);
      for (const std::span<const std::byte>& payload : payloads) {
        const auto* const numbers = reinterpret_cast<const float*>(payload.data());
        for (int64_t i = begin; i < end; ++i) sums[i] += numbers[i];
      }
    });
  }

  // The operands and the destination of a product p q^T (OuterProduct).
  struct Target {
    const float* matrix;
    float matrix_factor, product_factor;
    float* out;
    bool accumulate;
    bool stream;
  };
  static void add_product(const Layout& layout, const Factors& of, const float* p, const float* q, HostQueue& queue,
                          const Target& target) {
    const int64_t columns = of.matrix.columns;
    for_ranges(queue, of.matrix.rows, Layout::rows_across(of.matrix), [&](int64_t begin, int64_t end) {
      multiply_outer({.p = p + begin,
                      .p_stride = static_cast<size_t>(of.matrix.rows),
                      .q = q,
                      .q_stride = static_cast<size_t>(columns),
                      .rank = static_cast<size_t>(layout.rank()),
                      .rows = static_cast<size_t>(end - begin),
                      .columns = static_cast<size_t>(columns),
                      .matrix = offset(target.matrix, begin * columns),
                      .matrix_factor = target.matrix_factor,
                      .product_factor = target.product_factor,
                      .out = target.out + begin * columns,
                      .accumulate = target.accumulate,
                      .stream = target.stream});
    });
  }
};

constexpr double kRanks[] = {16, 8, 4, 2, 1};

}  // namespace

CompressorRow powersgd() {
  return {.traits = {.name = "powersgd",
                     .summary = "matrices as products of narrow ones, of this rank",
                     .fidelity = core::Fidelity::lossy,
                     .listed = core::Listed::for_sgd,
                     .seen_error = {.sgd = 0.86, .adaptive = 0.87},
                     .dense_first = 80,
                     .summable = true,
                     .error_feedback = true,
                     .parameter_name = "rank",
                     .parameter_default = 16,
                     .parameter_min = 1,
                     .parameter_max = kMaxRank,
                     .parameter_step = 1,
                     .parameter_search = kRanks,
                     .rounds = 2,
                     .needs_matrices = true,
                     .payload_bytes = [](const core::CompressorSpec& spec, const core::Extent& extent,
                                         int round) { return Layout(spec, extent).payload_bytes(round); },
                     .host = {.reads = 2, .feedback_reads = 4, .feedback_writes = 2}},
          .make = make_as<PowerSgd>};
}

}  // namespace gradtune::compress
