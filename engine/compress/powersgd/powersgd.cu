// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// `powersgd` on a device. Every compressed matrix is a job, so that all matrices of a bucket share a launch. P = M Q:
// half a warp processes a row, and each lane adds up every sixteenth product. Q = M^T P: a thread processes a column
// of a run of rows. One block of threads for each matrix makes the columns of P orthonormal, with the host's order of
// sums. This step is bound by latency: column j takes 2 j + 3 passes, one after the other.
#include "engine/compress/cuda/device_compressor.h"
#include "engine/compress/cuda/frames.cuh"
#include "engine/compress/cuda/random.cuh"
#include "engine/compress/powersgd/orthonormal.h"
#include "engine/compress/powersgd/powersgd_layout.h"

namespace gradtune::compress::cuda {
namespace {

using Factors = PowerSgdLayout::Factors;

constexpr int kAtOnce = 4;  // columns of a narrow matrix, or elements of a column that a thread loads

// --- The initial Q of a step: a block of threads for each column.
struct Start {
  struct Job {
    const float* state;  // or null
    float* q;
    int64_t columns, first;  // position of the matrix in the bucket
    Philox philox;
  };

  static __device__ void run(const Job& job, uint32_t j) {
    const float* const before = job.state == nullptr ? nullptr : job.state + j * job.columns;
    bool any = false;
    for (int64_t c = threadIdx.x; before != nullptr && c < job.columns; c += kThreads) any |= before[c] != 0;
    const bool is_warm = __syncthreads_or(any ? 1 : 0) != 0;
    for (int64_t c = threadIdx.x; c < job.columns; c += kThreads) {
      // A random number from -1 to 1, drawn by the position of an element of the matrix.
      const int64_t element = job.philox.first_element + job.first + j * job.columns + c;
      job.q[j * job.columns + c] =
          is_warm ? before[c]
                  : static_cast<float>(static_cast<int32_t>(shared_words(job.philox, element).at[0])) * 0x1p-31F;
    }
  }
};

// --- P = scale * M Q. M = gradient + residual is stored in the place of the next residual.
struct MultiplyRows {
  struct Job {
    const float* gradient;
    const float* residual;  // or null
    float* sum;             // null if residual is
    const float* q;
    float* p;
    Verdict* verdict;
    int64_t rows, columns;
    int rank;
    float scale;
  };
  static constexpr int64_t kRows = kThreads / 16;

  static __device__ void run(const Job& job, uint32_t block) {
    constexpr int64_t kLanesOfRow = 16, kColumns = 1024;  // columns whose products are added up in single precision
    const int64_t row = int64_t{block} * kRows + threadIdx.x / kLanesOfRow, lane = threadIdx.x % kLanesOfRow;
    const bool exists = row < job.rows;
    const int64_t columns = exists ? job.columns : 0, at = row * job.columns;
    for (int first = 0; first < job.rank; first += kAtOnce) {
      double sums[kAtOnce] = {};
      for (int64_t from = 0; from < job.columns; from += kColumns) {
        const int64_t to = from + kColumns < columns ? from + kColumns : columns;
        float dots[kAtOnce] = {};
#pragma unroll 4
        for (int64_t c = from + lane; c < to; c += kLanesOfRow) {
          float m = job.gradient[at + c];
          if (job.residual != nullptr) {
            m += job.residual[at + c];
            if (first == 0) job.sum[at + c] = m;
          }
#pragma unroll
          for (int j = 0; j < kAtOnce; ++j) {
            if (first + j < job.rank) dots[j] += m * __ldg(job.q + (first + j) * job.columns + c);
          }
        }
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          double sum = dots[j];
          sum += __shfl_down_sync(kAllLanes, sum, 8, 16);
          sum += __shfl_down_sync(kAllLanes, sum, 4, 16);
          sum += __shfl_down_sync(kAllLanes, sum, 2, 16);
          sum += __shfl_down_sync(kAllLanes, sum, 1, 16);
          sums[j] += sum;
        }
      }
      if (!exists || lane != 0) continue;
      for (int j = 0; j < kAtOnce && first + j < job.rank; ++j) {
        const auto p = static_cast<float>(double{job.scale} * sums[j]);
        // An element that is not finite makes its row of P not finite, whatever Q is.
        if (!is_finite(p)) tell_nonfinite(job.verdict);
        job.p[(first + j) * job.rows + row] = p;
      }
    }
  }
};

// --- The sum of the numbers at the front of payloads, beginning with zero.
struct AddUp {
  struct Job {
    Sums sums;
    float* copy;  // or null; a copy of the sums
  };

  static __device__ void run(const Job& job, uint32_t block) {
    const int64_t i = int64_t{block} * kThreads + threadIdx.x;
    if (i >= job.sums.n) return;
    float sum = job.sums.accumulate ? job.sums.out[i] : 0.0F;
    for (uint32_t p = 0; p < job.sums.count; ++p) sum += reinterpret_cast<const float*>(job.sums.payloads[p])[i];
    job.sums.out[i] = sum;
    if (job.copy != nullptr) job.copy[i] = sum;
  }
};

// --- Orthonormal columns (orthonormal.h).
struct Orthonormalise {
  struct Job {
    float* columns;
    int64_t rows;
    int64_t count;
  };
  struct Shared {
    double sums[kMostColumnPieces];
  };

  // column = factor * column - taken * from. Returns the product of the new column with `next`. Eight threads share a
  // piece of the column, always the same one.
  static __device__ __forceinline__ double pass(const Job& job, float* column, double factor, double taken,
                                                const float* from, const float* next, Shared& shared) {
    const int64_t step = column_piece(job.rows), pieces = (job.rows + step - 1) / step;
    const bool changes = from != nullptr || factor != 1;
    __syncthreads();
    for (int64_t first = 0; first < pieces; first += kThreads / 8) {
      const int64_t piece = first + threadIdx.x / 8, begin = piece * step;
      const int64_t end = begin + step < job.rows ? begin + step : job.rows;
      double sum = 0;
      for (int64_t i = begin + threadIdx.x % 8; i < end; i += 8 * kAtOnce) {
        float values[kAtOnce], taken_of[kAtOnce], others[kAtOnce];  // all are loaded before one is used
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          const int64_t at = i + 8 * k;
          values[k] = at < end ? column[at] : 0.0F;
          taken_of[k] = from != nullptr && at < end ? from[at] : 0.0F;
          others[k] = next != column && at < end ? next[at] : 0.0F;
        }
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          if (i + 8 * k >= end) continue;
          if (changes) {
            double exact = double{values[k]} * factor;
            if (from != nullptr) exact -= double{taken_of[k]} * taken;
            values[k] = static_cast<float>(exact);
            column[i + 8 * k] = values[k];
          }
          sum += double{values[k]} * double{next == column ? values[k] : others[k]};
        }
      }
      sum += __shfl_down_sync(kAllLanes, sum, 4, 8);
      sum += __shfl_down_sync(kAllLanes, sum, 2, 8);
      sum += __shfl_down_sync(kAllLanes, sum, 1, 8);
      if (piece < pieces && threadIdx.x % 8 == 0) shared.sums[piece] = sum;
    }
    __syncthreads();
    double sum = 0;
    for (int64_t piece = 0; piece < pieces; ++piece) sum += shared.sums[piece];
    return sum;
  }

  static __device__ void run(const Job& job, uint32_t /*block*/) {
    GRADTUNE_SHARED(Shared, shared);
    for (int64_t j = 0; j < job.count; ++j) {
      float* const column = job.columns + j * job.rows;
      const double before = sqrt(pass(job, column, 1, 0, nullptr, column, shared));
      double product = j == 0 ? before * before : pass(job, column, 1, 0, nullptr, job.columns, shared);
      for (int64_t i = 0; i < 2 * j; ++i) {  // all columns before it, twice
        const int64_t next = i + 1 < 2 * j ? (i + 1) % j : j;
        product = pass(job, column, 1, product, job.columns + i % j * job.rows, job.columns + next * job.rows, shared);
      }
      const double left = sqrt(product);
      if (left > kLeastLeft * before && is_finite(left)) {
        (void)pass(job, column, 1 / left, 0, nullptr, column, shared);
      } else {
        clear(job, column);
      }
    }
  }

 private:
  // Called by the threads that have the elements.
  static __device__ __forceinline__ void clear(const Job& job, float* column) {
    const int64_t step = column_piece(job.rows);
    for (int64_t begin = threadIdx.x / 8 * step; begin < job.rows; begin += kThreads / 8 * step) {
      const int64_t end = begin + step < job.rows ? begin + step : job.rows;
      for (int64_t i = begin + threadIdx.x % 8; i < end; i += 8) column[i] = 0;
    }
  }
};

// --- Q = scale * M^T P, for runs of rows. Their partial sums are then added up in order.
struct Project {
  struct Job {
    const float* matrix;
    const float* p;
    float* partials;  // for each run, the partial sums of all columns of Q
    int64_t rows, columns, run_rows, strips;
    int rank;
    int unused;
  };

  static __device__ void run(const Job& job, uint32_t block) {
    const int64_t run = block / job.strips, column = block % job.strips * kThreads + threadIdx.x;
    if (column >= job.columns) return;
    const int64_t begin = run * job.run_rows, end = begin + job.run_rows < job.rows ? begin + job.run_rows : job.rows;
    for (int first = 0; first < job.rank; first += kAtOnce) {
      float sums[kAtOnce] = {};
#pragma unroll 4
      for (int64_t row = begin; row < end; ++row) {
        const float m = job.matrix[row * job.columns + column];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          if (first + j < job.rank) sums[j] += m * __ldg(job.p + (first + j) * job.rows + row);
        }
      }
      for (int j = 0; j < kAtOnce && first + j < job.rank; ++j) {
        job.partials[(run * job.rank + first + j) * job.columns + column] = sums[j];
      }
    }
  }
};

struct AddPartials {
  struct Job {
    const float* partials;
    float* q;
    Verdict* verdict;
    int64_t numbers, runs;
    float scale;
    int unused;
  };

  static __device__ void run(const Job& job, uint32_t block) {
    const int64_t i = int64_t{block} * kThreads + threadIdx.x;
    if (i >= job.numbers) return;
    float sum = job.partials[i];
    for (int64_t run = 1; run < job.runs; ++run) sum += job.partials[run * job.numbers + i];
    sum *= job.scale;
    if (!is_finite(sum)) tell_nonfinite(job.verdict);
    job.q[i] = sum;
  }
};

// --- out = (accumulate ? out : 0) + (matrix == null ? P Q^T : matrix_factor * matrix - product_factor * P Q^T).
struct MultiplyOuter {
  struct Job {
    const float* p;
    const float* q;
    const float* matrix;  // may be `out`
    float* out;
    int64_t rows, columns;
    float matrix_factor, product_factor;
    int rank;
    bool accumulate;
  };
  static constexpr int kElements = 4;  // of a thread

  static __device__ void run(const Job& job, uint32_t block) {
    const int64_t first = int64_t{block} * kThreads * kElements + threadIdx.x, n = job.rows * job.columns;
    float product[kElements] = {};
    int64_t row[kElements], column[kElements];
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const int64_t i = first + e * kThreads < n ? first + e * kThreads : 0;
      row[e] = i / job.columns;
      column[e] = i - row[e] * job.columns;
    }
    for (int j = 0; j < job.rank; ++j) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        product[e] += __ldg(job.q + j * job.columns + column[e]) * __ldg(job.p + j * job.rows + row[e]);
      }
    }
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const int64_t i = first + e * kThreads;
      if (i >= n) continue;
      float value = product[e];
      if (job.matrix != nullptr) value = job.matrix[i] * job.matrix_factor - value * job.product_factor;
      job.out[i] = job.accumulate ? job.out[i] + value : value;
    }
  }
};

// --- Elements that belong to no compressed matrix: they are sent in fp32 without compression.
struct EncodePlain {
  struct Job {
    Elements of;
    float* payload;
  };

  static __device__ void run(const Job& job, uint32_t block) {
    const int64_t i = int64_t{block} * kThreads + threadIdx.x;
    if (i >= job.of.n) return;
    const float sent = load_p(job.of, i) * job.of.scale;
    if (!is_finite(sent)) tell_nonfinite(job.of.verdict);
    job.payload[i] = sent;
    if (job.of.next == nullptr) return;
    const float missed = (sent - sent) * job.of.error_scale;
    job.of.next[i] = job.of.add ? job.of.next[i] + missed : missed;
  }
};

struct DecodePlain {
  struct Job {
    Sums sums;
    int64_t at;  // in payloads, in numbers
  };

  static __device__ void run(const Job& job, uint32_t block) {
    const int64_t i = int64_t{block} * kThreads + threadIdx.x;
    const Sums& sums = job.sums;
    if (i >= sums.n) return;
    const auto value_of = [&](uint32_t p) { return reinterpret_cast<const float*>(sums.payloads[p])[job.at + i]; };
    float sum = sums.accumulate ? sums.out[i] + value_of(0) : value_of(0);
    for (uint32_t p = 1; p < sums.count; ++p) sum += value_of(p);
    sums.out[i] = sum;
  }
};

struct TellUsed {
  struct Job {
    Verdict* verdict;
    int64_t bytes;
  };
  static __device__ void run(const Job& job, uint32_t /*block*/) {
    if (threadIdx.x == 0) tell_used(job.verdict, job.bytes);
  }
};

template <class T>
T* offset_of(T* pointer, int64_t i) {
  return pointer == nullptr ? nullptr : pointer + i;
}

class PowerSgd final : public DeviceCompressor {
 public:
  using DeviceCompressor::DeviceCompressor;

  // The Q of all matrices, or all partial sums of Q.
  int64_t scratch_bytes(const core::Extent& extent) const override {
    const PowerSgdLayout layout(spec(), extent);
    int64_t numbers = 0;
    layout.for_matrices(
        [&](const Factors& of) { numbers += layout.rank() * of.matrix.columns * PowerSgdLayout::partials(of.matrix); });
    return 4 * numbers;
  }

 private:
  static float* p_of(const Work& work) { return reinterpret_cast<float*>(work.round_memory); }
  static float* q_of(const Work& work, const PowerSgdLayout& layout) { return p_of(work) + layout.p_numbers(); }

  void enqueue_encode(std::span<const Encode> jobs, Queue& queue) const override {
    Launches<TellUsed> used(queue);
    for (const Encode& job : jobs) {
      const PowerSgdLayout layout(spec(), {static_cast<int64_t>(job.gradient.size()), job.work.matrices});
      job.work.round == 0 ? encode_p(job, layout, queue) : encode_q(job, layout, queue);
      used.add({job.verdict, static_cast<int64_t>(job.payload.size())}, 1);
    }
    used.finish();
  }

  static void encode_p(const Encode& job, const PowerSgdLayout& layout, Queue& queue) {
    auto* const q = reinterpret_cast<float*>(job.scratch.data());
    auto* const p = reinterpret_cast<float*>(job.payload.data());
    const auto* const state = reinterpret_cast<const float*>(job.work.state);
    Launches<Start> start(queue);
    layout.for_matrices([&](const Factors& of) {
      start.add({.state = offset_of(state, of.q_at),
                 .q = q + of.q_at,
                 .columns = of.matrix.columns,
                 .first = of.matrix.begin,
                 .philox = philox_of(job.work)},
                layout.rank());
    });
    start.finish();
    Launches<MultiplyRows> multiply(queue);
    layout.for_matrices([&](const Factors& of) {
      multiply.add({.gradient = job.gradient.data() + of.matrix.begin,
                    .residual = offset_of(job.residual, of.matrix.begin),
                    .sum = job.residual == nullptr ? nullptr : job.residual_next + of.matrix.begin,
                    .q = q + of.q_at,
                    .p = p + of.p_at,
                    .verdict = job.verdict,
                    .rows = of.matrix.rows,
                    .columns = of.matrix.columns,
                    .rank = static_cast<int>(layout.rank()),
                    .scale = job.scale},
                   blocks_of(of.matrix.rows, MultiplyRows::kRows));
    });
    multiply.finish();
  }

  static void encode_q(const Encode& job, const PowerSgdLayout& layout, Queue& queue) {
    auto* const partials = reinterpret_cast<float*>(job.scratch.data());
    auto* const q = reinterpret_cast<float*>(job.payload.data());
    const float* const sum = job.residual == nullptr ? job.gradient.data() : job.residual_next;
    const auto rank = static_cast<int>(layout.rank());
    Launches<Project> project(queue);
    Launches<AddPartials> add(queue);
    Launches<MultiplyOuter> keep_errors(queue);
    // Calls visit(factors, place of the matrix' partial sums).
    const auto for_partials = [&](const auto& visit) {
      int64_t at = 0;
      layout.for_matrices([&](const Factors& of) {
        visit(of, partials + at);
        at += rank * of.matrix.columns * PowerSgdLayout::partials(of.matrix);
      });
    };
    for_partials([&](const Factors& of, float* at) {
      const int64_t strips = blocks_of(of.matrix.columns, kThreads);
      project.add({.matrix = sum + of.matrix.begin,
                   .p = p_of(job.work) + of.p_at,
                   .partials = at,
                   .rows = of.matrix.rows,
                   .columns = of.matrix.columns,
                   .run_rows = PowerSgdLayout::rows_down(of.matrix),
                   .strips = strips,
                   .rank = rank,
                   .unused = 0},
                  strips * PowerSgdLayout::partials(of.matrix));
    });
    project.finish();
    for_partials([&](const Factors& of, float* at) {
      const int64_t numbers = rank * of.matrix.columns;
      add.add({.partials = at,
               .q = q + of.q_at,
               .verdict = job.verdict,
               .numbers = numbers,
               .runs = PowerSgdLayout::partials(of.matrix),
               .scale = job.scale,
               .unused = 0},
              blocks_of(numbers, kThreads));
    });
    add.finish();
    layout.for_matrices([&](const Factors& of) {
      if (job.residual_next == nullptr) return;
      keep_errors.add({.p = p_of(job.work) + of.p_at,
                       .q = q + of.q_at,
                       .matrix = sum + of.matrix.begin,
                       .out = job.residual_next + of.matrix.begin,
                       .rows = of.matrix.rows,
                       .columns = of.matrix.columns,
                       .matrix_factor = unsent_factor(job),
                       .product_factor = job.error_scale,
                       .rank = rank,
                       .accumulate = job.add_to_residual_next},
                      outer_blocks(of.matrix));
    });
    keep_errors.finish();
    Launches<EncodePlain> plain(queue);
    layout.for_plain([&](int64_t first, int64_t last, int64_t at) {
      Elements of = elements_of(job);
      of.gradient += first;
      of.residual = offset_of(of.residual, first);
      of.next = offset_of(of.next, first);
      of.n = last - first;
      plain.add({of, q + layout.q_numbers() + at}, blocks_of(of.n, kThreads));
    });
    plain.finish();
  }

  static int64_t outer_blocks(const core::Matrix& matrix) {
    return blocks_of(matrix.rows * matrix.columns, kThreads * MultiplyOuter::kElements);
  }

  void enqueue_decode(std::span<const Decode> jobs, Queue& queue) const override {
    for (const Decode& job : jobs) {
      const PowerSgdLayout layout(spec(), {static_cast<int64_t>(job.out.size()), job.work.matrices});
      job.work.round == 0 ? decode_p(job, layout, queue) : decode_q(job, layout, queue);
    }
  }

  // Adds up the n numbers at the front of payloads.
  static void add_up(const Decode& job, float* to, float* copy, int64_t n, Queue& queue) {
    decode_by<AddUp>(
        {&job, 1}, queue,
        [&](const Decode&, Sums sums) -> AddUp::Job {
          sums.out = to;
          sums.n = n;
          sums.accumulate = sums.first > 0;
          return {sums, copy};
        },
        [&](const Decode&) { return blocks_of(n, kThreads); });
  }

  static void decode_p(const Decode& job, const PowerSgdLayout& layout, Queue& queue) {
    float* const p = p_of(job.work);
    add_up(job, p, nullptr, layout.p_numbers(), queue);
    Launches<Orthonormalise> launches(queue);
    layout.for_matrices([&](const Factors& of) { launches.add({p + of.p_at, of.matrix.rows, layout.rank()}, 1); });
    launches.finish();
  }

  static void decode_q(const Decode& job, const PowerSgdLayout& layout, Queue& queue) {
    float* const q = q_of(job.work, layout);
    add_up(job, q, reinterpret_cast<float*>(job.work.state_next), layout.q_numbers(), queue);
    Launches<MultiplyOuter> multiply(queue);
    layout.for_matrices([&](const Factors& of) {
      multiply.add({.p = p_of(job.work) + of.p_at,
                    .q = q + of.q_at,
                    .matrix = nullptr,
                    .out = job.out.data() + of.matrix.begin,
                    .rows = of.matrix.rows,
                    .columns = of.matrix.columns,
                    .matrix_factor = 0,
                    .product_factor = 0,
                    .rank = static_cast<int>(layout.rank()),
                    .accumulate = job.accumulate},
                   outer_blocks(of.matrix));
    });
    multiply.finish();
    layout.for_plain([&](int64_t first, int64_t last, int64_t at) {
      decode_by<DecodePlain>(
          {&job, 1}, queue,
          [&](const Decode&, Sums sums) -> DecodePlain::Job {
            sums.out += first;
            sums.n = last - first;
            return {sums, layout.q_numbers() + at};
          },
          [&](const Decode&) { return blocks_of(last - first, kThreads); });
    });
  }
};

}  // namespace

std::unique_ptr<Compressor> powersgd(std::unique_ptr<Compressor> host) {
  return std::make_unique<PowerSgd>(std::move(host));
}

}  // namespace gradtune::compress::cuda
