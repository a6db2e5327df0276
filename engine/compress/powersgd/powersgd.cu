// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// `powersgd` on a device. Every compressed matrix is a job, so that all matrices of a bucket share a launch. P = M Q:
// half a warp processes two rows, and each lane adds up every sixteenth product. Three launches make the columns of P
// orthonormal (orthonormal.cuh). Q = M^T P: a thread processes a column of a run of rows. P Q^T: a thread processes
// eight rows of a column.
#include "engine/compress/cuda/device_compressor.h"
#include "engine/compress/cuda/frames.cuh"
#include "engine/compress/cuda/random.cuh"
#include "engine/compress/powersgd/orthonormal.cuh"
#include "engine/compress/powersgd/powersgd_layout.h"

namespace gradtune::compress::cuda {
namespace {

using Factors = PowerSgdLayout::Factors;

constexpr int kAtOnce = 4;     // elements that a thread loads before it uses one
constexpr int kTogether = 16;  // columns of a narrow matrix, for which a large matrix is read once

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
  static constexpr int64_t kLanesOfRows = 16;
  static constexpr int kRowsEach = 2;  // of a thread, for which a number of Q is read once
  static constexpr int64_t kRows = kThreads / kLanesOfRows * kRowsEach;
  struct Shared {
    double sums[kRows][kTogether];
  };

  static __device__ void run(const Job& job, uint32_t block) {
    GRADTUNE_SHARED(Shared, shared);
    constexpr int64_t kColumns = 1024;  // whose products are added up in single precision
    const int64_t lane = threadIdx.x % kLanesOfRows, first_row = threadIdx.x / kLanesOfRows * kRowsEach;
    const int64_t row = block * kRows + first_row;
    double(*const sums)[kTogether] = shared.sums + first_row;
    for (int first = 0; first < job.rank; first += kTogether) {
      for (int64_t from = 0; from < job.columns; from += kColumns) {
        const int64_t to = from + kColumns < job.columns ? from + kColumns : job.columns;
        float dots[kRowsEach][kTogether] = {};
        for (int64_t c = from + lane; c < to; c += kLanesOfRows * kAtOnce) {
          float m[kAtOnce][kRowsEach];
          load(job, row, c, to, first == 0, m);
#pragma unroll
          for (int k = 0; k < kAtOnce; ++k) {
            if (c + k * kLanesOfRows >= to) continue;
#pragma unroll
            for (int j = 0; j < kTogether; ++j) {
              if (first + j >= job.rank) continue;
              const float q = __ldg(job.q + (first + j) * job.columns + c + k * kLanesOfRows);
#pragma unroll
              for (int r = 0; r < kRowsEach; ++r) dots[r][j] += m[k][r] * q;
            }
          }
        }
#pragma unroll
        for (int r = 0; r < kRowsEach; ++r) {
#pragma unroll
          for (int j = 0; j < kTogether; ++j) {
            double sum = dots[r][j];
            sum += __shfl_down_sync(kAllLanes, sum, 8, 16);
            sum += __shfl_down_sync(kAllLanes, sum, 4, 16);
            sum += __shfl_down_sync(kAllLanes, sum, 2, 16);
            sum += __shfl_down_sync(kAllLanes, sum, 1, 16);
            if (lane == 0) sums[r][j] = from == 0 ? sum : sums[r][j] + sum;
          }
        }
      }
      for (int r = 0; lane == 0 && r < kRowsEach && row + r < job.rows; ++r) {
        for (int j = 0; j < kTogether && first + j < job.rank; ++j) {
          const auto p = static_cast<float>(double{job.scale} * sums[r][j]);
          // An element that is not finite makes its row of P not finite, whatever Q is.
          if (!is_finite(p)) tell_nonfinite(job.verdict);
          job.p[(first + j) * job.rows + row + r] = p;
        }
      }
    }
  }

 private:
  // All are loaded before one is used.
  static __device__ __forceinline__ void load(const Job& job, int64_t row, int64_t column, int64_t end, bool keeps,
                                              float (&m)[kAtOnce][kRowsEach]) {
    float residual[kAtOnce][kRowsEach];
    const bool has_residual = job.residual != nullptr;
    // Calls visit(k, r, place) for the elements, with a place below 0 for those that do not exist.
    const auto for_all = [&](const auto& visit) {
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
#pragma unroll
        for (int r = 0; r < kRowsEach; ++r) {
          const int64_t c = column + k * kLanesOfRows;
          visit(k, r, row + r < job.rows && c < end ? (row + r) * job.columns + c : -1);
        }
      }
    };
    for_all([&](int k, int r, int64_t at) {
      m[k][r] = at >= 0 ? job.gradient[at] : 0.0F;
      residual[k][r] = at >= 0 && has_residual ? job.residual[at] : 0.0F;
    });
    if (!has_residual) return;
    for_all([&](int k, int r, int64_t at) {
      m[k][r] += residual[k][r];
      if (keeps && at >= 0) job.sum[at] = m[k][r];
    });
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

// Adds the products of a number with four others to four sums.
__device__ __forceinline__ void add_products(float one, const float4& four, float* sums) {
  sums[0] += one * four.x;
  sums[1] += one * four.y;
  sums[2] += one * four.z;
  sums[3] += one * four.w;
}

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

  static constexpr int kRows = 64;             // of P, in shared memory at a time
  static constexpr unsigned kLeastBlocks = 3;  // otherwise the compiler spills registers to fit four
  static constexpr int kRowsAtOnce = 8;        // of the matrix, which a thread loads before it uses one
  struct Shared {
    float4 p[kRows][kTogether / 4 + 1];  // with fewer conflicts of banks
  };

  static __device__ void run(const Job& job, uint32_t block) {
    GRADTUNE_SHARED(Shared, shared);
    const int64_t run = block / job.strips, column = block % job.strips * kThreads + threadIdx.x;
    const int64_t begin = run * job.run_rows, end = begin + job.run_rows < job.rows ? begin + job.run_rows : job.rows;
    const bool exists = column < job.columns;
    for (int first = 0; first < job.rank; first += kTogether) {
      float sums[kTogether] = {};
      for (int64_t from = begin; from < end; from += kRows) {
        const auto rows = static_cast<int>(end - from < kRows ? end - from : kRows);
        __syncthreads();
        for (int i = static_cast<int>(threadIdx.x); i < kRows * kTogether; i += kThreads) {
          const int row = i % kRows, j = i / kRows;
          const bool is_one = row < rows && first + j < job.rank;
          reinterpret_cast<float*>(shared.p[row])[j] =
              is_one ? __ldg(job.p + (first + j) * job.rows + from + row) : 0.0F;
        }
        __syncthreads();
        if (!exists) continue;
        for (int top = 0; top < rows; top += kRowsAtOnce) {
          float m[kRowsAtOnce];
#pragma unroll
          for (int k = 0; k < kRowsAtOnce; ++k) {
            m[k] = top + k < rows ? job.matrix[(from + top + k) * job.columns + column] : 0.0F;
          }
#pragma unroll
          for (int k = 0; k < kRowsAtOnce; ++k) {
            if (top + k >= rows) continue;
#pragma unroll
            for (int four = 0; four < kTogether / 4; ++four) {
              add_products(m[k], shared.p[top + k][four], sums + 4 * four);
            }
          }
        }
      }
      for (int j = 0; exists && j < kTogether && first + j < job.rank; ++j) {
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
    uint32_t width;  // width_for(columns): the kernel would need registers that it lacks to find it
    bool accumulate;
  };
  static constexpr int kRowsEach = 8;  // of a thread
  static constexpr uint32_t kLeastWidth = 32, kMostRows = kThreads / kLeastWidth * kRowsEach;
  struct Shared {
    float4 p[kTogether][kMostRows / 4];
  };

  // The columns of a block of threads.
  static uint32_t width_for(int64_t columns) {
    uint32_t width = kLeastWidth;
    while (width < kThreads && width < columns) width *= 2;
    return width;
  }
  static int64_t blocks_for(const core::Matrix& matrix) {
    const int64_t width = width_for(matrix.columns);
    return blocks_of(matrix.columns, width) * blocks_of(matrix.rows, kThreads / width * kRowsEach);
  }

  static __device__ void run(const Job& job, uint32_t block) {
    GRADTUNE_SHARED(Shared, shared);
    const auto strips = static_cast<uint32_t>(blocks_of(job.columns, job.width));
    const uint32_t block_rows = kThreads / job.width * kRowsEach, group = threadIdx.x / job.width;
    const int64_t top = int64_t{block / strips} * block_rows, row = top + group * kRowsEach;
    const int64_t column = int64_t{block % strips} * job.width + threadIdx.x % job.width;
    const bool exists = column < job.columns;
    float product[kRowsEach] = {};
    for (int first = 0; first < job.rank; first += kTogether) {
      const int count = job.rank - first < kTogether ? job.rank - first : kTogether;
      __syncthreads();
      for (uint32_t i = threadIdx.x; i < count * block_rows; i += kThreads) {
        const uint32_t j = i / block_rows, r = i % block_rows;
        reinterpret_cast<float*>(shared.p[j])[r] =
            top + r < job.rows ? __ldg(job.p + (first + j) * job.rows + top + r) : 0.0F;
      }
      __syncthreads();
      if (!exists) continue;
#pragma unroll 4
      for (int j = 0; j < count; ++j) {
        const float q = __ldg(job.q + (first + j) * job.columns + column);
        const float4* const p = shared.p[j] + group * (kRowsEach / 4);
#pragma unroll
        for (int four = 0; four < kRowsEach / 4; ++four) {
          add_products(q, p[four], product + 4 * four);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRowsEach; ++r) {
      if (!exists || row + r >= job.rows) continue;
      const int64_t i = (row + r) * job.columns + column;
      float value = product[r];
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
                       .width = MultiplyOuter::width_for(of.matrix.columns),
                       .accumulate = job.add_to_residual_next},
                      MultiplyOuter::blocks_for(of.matrix));
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
    auto* const products = reinterpret_cast<double*>(job.work.round_memory + layout.products_begin());
    double* const next = products + layout.products();
    add_up(job, p, nullptr, layout.p_numbers(), queue);
    const auto pass = [&]<class Kernel>(const Kernel&, const double* before, double* after) {
      Launches<Kernel> launches(queue);
      layout.for_matrices([&](const Factors& of) {
        launches.add({.columns = p + of.p_at,
                      .before = offset_of(before, of.products_at),
                      .products = offset_of(after, of.products_at),
                      .rows = of.matrix.rows,
                      .count = layout.rank()},
                     column_pieces(of.matrix.rows));
      });
      launches.finish();
    };
    pass(PassOverColumns<false, true>(), nullptr, products);
    pass(PassOverColumns<true, true>(), products, next);
    pass(PassOverColumns<true, false>(), next, nullptr);
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
                    .width = MultiplyOuter::width_for(of.matrix.columns),
                    .accumulate = job.accumulate},
                   MultiplyOuter::blocks_for(of.matrix));
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
