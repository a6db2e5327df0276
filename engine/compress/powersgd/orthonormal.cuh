// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Orthonormal columns (orthonormal.h) on a device, with the host's order of sums. Three passes over pieces make them:
// products of the columns; columns R^-1, and their products; columns R^-1. A block of threads has a piece, and computes
// R by itself.
#pragma once

#include "engine/compress/cuda/elements.cuh"
#include "engine/compress/powersgd/matrix_kernels.h"
#include "engine/compress/powersgd/orthonormal.h"

namespace gradtune::compress::cuda {

template <bool kDivides, bool kMultiplies>
struct PassOverColumns {
  struct Job {
    float* columns;
    const double* before;  // products of all pieces, which have R
    double* products;      // of the columns that this pass leaves
    int64_t rows, count;
  };
  static constexpr unsigned kLeastBlocks = 4;  // otherwise the compiler spills registers to fit more
  struct Shared {
    double r[column_pairs(kMaxRank)];
    double least[kMaxRank], inverses[kMaxRank];
  };

  static __device__ void run(const Job& job, uint32_t piece) {
    const int64_t begin = piece * column_piece(job.rows), end = begin + column_piece(job.rows);
    const int64_t last = end < job.rows ? end : job.rows;
    if constexpr (kDivides) {
      GRADTUNE_SHARED(Shared, shared);
      factorise(job, shared);
      for (int64_t row = begin + threadIdx.x; row < last; row += kThreads) divide(job, row, shared);
      __syncthreads();
    }
    if constexpr (kMultiplies) multiply(job, begin, last, job.products + piece * column_pairs(job.count));
  }

 private:
  static constexpr int kAtOnce = 4;  // elements that a thread loads before it uses one

  static __device__ __forceinline__ void factorise(const Job& job, Shared& shared) {
    const auto pairs = static_cast<int>(column_pairs(job.count));
    const int64_t pieces = column_pieces(job.rows);
    for (int pair = static_cast<int>(threadIdx.x); pair < pairs; pair += kThreads) {
      double sum = job.before[pair];
      for (int64_t piece = 1; piece < pieces; ++piece) sum += job.before[piece * pairs + pair];
      shared.r[pair] = sum;
    }
    __syncthreads();
    for (int j = static_cast<int>(threadIdx.x); j < job.count; j += kThreads) {
      shared.least[j] = kLeastLeft * kLeastLeft * shared.r[pair_at(j, j)];
    }
    __syncthreads();
    for (int k = 0; k < job.count; ++k) {
      const double left = shared.r[pair_at(k, k)];
      const bool is_good = left > shared.least[k] && is_finite(left);
      const double inverse = is_good ? 1 / sqrt(left) : 0;
      if (threadIdx.x == 0) shared.inverses[k] = inverse;
      for (int j = k + 1 + static_cast<int>(threadIdx.x); j < job.count; j += kThreads) {
        double& of_row = shared.r[pair_at(k, j)];
        of_row = is_good ? of_row * inverse : 0;
      }
      __syncthreads();
      static_assert(kMaxRank <= 64, "64 threads have the elements of a column");
      const int i = k + 1 + static_cast<int>(threadIdx.x % 64);
      for (int j = k + 1 + static_cast<int>(threadIdx.x / 64); j < job.count; j += kThreads / 64) {
        if (i <= j) shared.r[pair_at(i, j)] -= shared.r[pair_at(k, i)] * shared.r[pair_at(k, j)];
      }
      __syncthreads();
    }
  }

  static __device__ __forceinline__ void divide(const Job& job, int64_t row, const Shared& shared) {
    double kept[kMaxRank];  // the row, before it is rounded
    const double* r = shared.r;
    for (int j = 0; j < job.count; r += ++j) {
      float* const place = job.columns + j * job.rows + row;
      double value = 0;
      if (shared.inverses[j] != 0) {
        value = *place;
        for (int i = 0; i < j; ++i) value -= kept[i] * r[i];
        value *= shared.inverses[j];
      }
      kept[j] = value;
      *place = static_cast<float>(value);
    }
  }

  // Eight threads have a pair of columns, and each of them every eighth element.
  static __device__ __forceinline__ void multiply(const Job& job, int64_t begin, int64_t end, double* products) {
    const auto pairs = static_cast<int>(column_pairs(job.count));
    int i = static_cast<int>(threadIdx.x / 8), j = 0;  // the pair, where i <= j; no pair if j == count
    for (int first = 0; first < pairs; first += kThreads / 8) {
      while (i > j) i -= ++j;
      const bool exists = j < job.count;
      const float* const one = job.columns + (exists ? i * job.rows : 0);
      const float* const other = job.columns + (exists ? j * job.rows : 0);
      double sum = 0;
      for (int64_t at = begin + threadIdx.x % 8; at < end; at += 8 * kAtOnce) {
        float a[kAtOnce], b[kAtOnce];  // all are loaded before one is used
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          a[k] = at + 8 * k < end ? one[at + 8 * k] : 0.0F;
          b[k] = at + 8 * k < end ? other[at + 8 * k] : 0.0F;
        }
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          if (at + 8 * k < end) sum += double{a[k]} * double{b[k]};
        }
      }
      sum += __shfl_down_sync(kAllLanes, sum, 4, 8);
      sum += __shfl_down_sync(kAllLanes, sum, 2, 8);
      sum += __shfl_down_sync(kAllLanes, sum, 1, 8);
      if (exists && threadIdx.x % 8 == 0) products[pair_at(i, j)] = sum;
      i += kThreads / 8;
    }
  }
};

}  // namespace gradtune::compress::cuda
