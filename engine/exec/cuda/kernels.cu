// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/cuda/kernels.h"

#include <cmath>

#include "engine/compress/cuda/elements.cuh"
#include "engine/compress/cuda/numbers.cuh"
#include "engine/compress/cuda/table.h"
#include "engine/compress/simd/dense_kernels.h"
#include "engine/exec/compute.h"

namespace gradtune::exec::cuda {
namespace {

using namespace compress::cuda;
using compress::Verdict;
using core::DType;

constexpr int kQuads = 2;
constexpr int64_t kTile = kThreads * 4 * kQuads, kStep = kThreads * 4;
constexpr int64_t kEach = 4;  // the number of elements of a thread, if it takes them one by one

// --- shares of the average -------------------------------------------------------------------------------------------

struct Scale {
  struct Job {
    float* values;
    const float* residual;  // may be null, as may the next one
    float* residual_next;
    Verdict* verdict;
    int64_t n;
    float factor;
    bool aligned;
  };

  static __device__ void run(const Job& job, uint32_t block) {
    const int64_t tile = int64_t{block} * kTile;
    if (job.aligned && tile + kTile <= job.n) {
      scale_tile<true>(job, tile);
    } else {
      scale_tile<false>(job, tile);
    }
  }

  template <bool kWhole>
  static __device__ __forceinline__ void scale_tile(const Job& job, int64_t tile) {
    const int64_t first = tile + int64_t{threadIdx.x} * 4;
    Quad p[kQuads];
#pragma unroll
    for (int g = 0; g < kQuads; ++g) p[g] = load<kWhole>(job.values, first + g * kStep, job.n);
    if (job.residual != nullptr) {
#pragma unroll
      for (int g = 0; g < kQuads; ++g) {
        const int64_t i = first + g * kStep;
        const Quad residual = load<kWhole>(job.residual, i, job.n);
#pragma unroll
        for (int j = 0; j < 4; ++j) p[g].at[j] += residual.at[j];
        store<kWhole>(Quad{}, job.residual_next, i, job.n);
      }
    }
    bool good = true;
#pragma unroll
    for (int g = 0; g < kQuads; ++g) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        p[g].at[j] *= job.factor;
        good &= is_finite(p[g].at[j]);
      }
      store<kWhole>(p[g], job.values, first + g * kStep, job.n);
    }
    if (!good) tell_nonfinite(job.verdict);
  }
};

template <DType kType>
struct ScaleNumbers {
  struct Job {
    uint16_t* numbers;
    Verdict* verdict;
    int64_t n;
    float factor;
    uint32_t largest;  // the bits of the largest result that can still be summed
  };

  static __device__ void run(const Job& job, uint32_t block) {
    if (block == 0 && threadIdx.x == 0) tell_used(job.verdict, job.n * 2);
    bool good = true;
    for (int64_t k = 0; k < kEach; ++k) {
      const int64_t i = (int64_t{block} * kEach + k) * kThreads + threadIdx.x;
      if (i >= job.n) break;
      const float scaled = widen<kType>(job.numbers[i]) * job.factor;
      good &= abs_bits(scaled) <= job.largest;
      job.numbers[i] = static_cast<uint16_t>(narrow<kType>(scaled));
    }
    if (!good) tell_nonfinite(job.verdict);
  }
};

struct ScaleDoubles {
  struct Job {
    double* values;
    Verdict* verdict;
    int64_t n;
    double factor;
  };

  static __device__ void run(const Job& job, uint32_t block) {
    bool good = true;
    for (int64_t k = 0; k < kEach; ++k) {
      const int64_t i = (int64_t{block} * kEach + k) * kThreads + threadIdx.x;
      if (i >= job.n) break;
      job.values[i] *= job.factor;
      good &= is_finite(job.values[i]);
    }
    if (!good) tell_nonfinite(job.verdict);
  }
};

template <class Bits>
struct NansAlike {
  struct Job {
    Bits* numbers;
    int64_t n;
    uint64_t infinity;
  };

  static __device__ void run(const Job& job, uint32_t block) {
    constexpr auto kAll = static_cast<Bits>(~Bits{0});
    for (int64_t k = 0; k < kEach; ++k) {
      const int64_t i = (int64_t{block} * kEach + k) * kThreads + threadIdx.x;
      if (i < job.n && (job.numbers[i] & kAll >> 1) > job.infinity) job.numbers[i] = kAll;
    }
  }
};

// --- draining --------------------------------------------------------------------------------------------------------

// Loads and stores a gradient's elements as draining.cc does.
template <DType kType>
struct Element {
  using Stored = uint16_t;
  static __device__ __forceinline__ float load(Stored bits) { return widen<kType>(bits); }
  static __device__ __forceinline__ Stored store(float value) { return static_cast<Stored>(narrow<kType>(value)); }
};
template <>
struct Element<DType::f32> {
  using Stored = float;
  static __device__ __forceinline__ float load(Stored value) { return value; }
  static __device__ __forceinline__ Stored store(float value) { return value; }
};

template <DType kType>
struct DrainJob {
  typename Element<kType>::Stored* gradient;
  float* residual;
  float* residual_next;  // null: the residual is kept once, and is multiplied first
  int64_t n;
  Drained* result;
  float left_before;
  uint32_t unused;
};

// Adds up sums of squares as the host does: a part for each thread, one element after the other. One block reads
// everything, because steps that drain are few.
template <DType kType>
struct DrainRule {
  using Job = DrainJob<kType>;
  struct Squares {
    double gradient[kDrainParts], residual[kDrainParts];
  };

  static __device__ void run(const Job& job, uint32_t /*block*/) {
    GRADTUNE_SHARED(Squares, squares);
    static_assert(kDrainParts == kThreads);
    const int64_t length = drain_part(job.n), begin = threadIdx.x * length;
    const int64_t end = begin + length < job.n ? begin + length : job.n;
    double gradient = 0, residual = 0;
    for (int64_t i = begin; i < end; ++i) {
      if (job.residual_next == nullptr) job.residual[i] *= job.left_before;
      const double g = Element<kType>::load(job.gradient[i]), r = job.residual[i];
      gradient += g * g;
      residual += r * r;
    }
    squares.gradient[threadIdx.x] = gradient;
    squares.residual[threadIdx.x] = residual;
    __syncthreads();
    if (threadIdx.x != 0) return;
    gradient = residual = 0;
    for (unsigned part = 0; part < kThreads; ++part) {
      gradient += squares.gradient[part];
      residual += squares.residual[part];
    }
    Drained& result = *job.result;
    result = Drained{};
    if (residual == 0) return;
    result.left = true;
    if (gradient == 0 || !is_finite(gradient)) return;
    const double most = kDrainShare * sqrt(gradient / residual);
    result.share = static_cast<float>(most < 1.0 ? most : 1.0);
    result.added = true;
    result.left = result.share != 1;
  }
};

template <DType kType>
struct DrainApply {
  using Job = DrainJob<kType>;

  static __device__ void run(const Job& job, uint32_t block) {
    const Drained drained = *job.result;
    if (!drained.added) return;
    for (int64_t k = 0; k < kEach; ++k) {
      const int64_t i = (int64_t{block} * kEach + k) * kThreads + threadIdx.x;
      if (i >= job.n) return;
      const float before = Element<kType>::load(job.gradient[i]);
      job.gradient[i] = Element<kType>::store(before + drained.share * job.residual[i]);
      if (job.residual_next == nullptr) continue;
      job.residual_next[i] = drained.left ? job.residual[i] - (Element<kType>::load(job.gradient[i]) - before) : 0;
    }
  }
};

// --- samples ---------------------------------------------------------------------------------------------------------

// Eight lanes add up a run; they take runs by turns.
struct SumSquares {
  struct Job {
    const float* values;
    const float* others;  // may be null
    Runs runs;
    double* to;
    double unit;
    float sign;
    uint32_t unused;
  };
  struct Sums {
    double of_run[kRuns];
  };

  static __device__ __forceinline__ double square(const Job& job, int64_t i) {
    const double x = job.others == nullptr ? job.values[i] : job.values[i] + job.sign * job.others[i];
    return x * x;
  }

  static __device__ void run(const Job& job, uint32_t /*block*/) {
    constexpr int kLanes = 8;
    GRADTUNE_SHARED(Sums, sums);
    const int lane = static_cast<int>(threadIdx.x) % kLanes, first = static_cast<int>(threadIdx.x) / kLanes;
    const int64_t n = job.runs.length, whole = n / kLanes * kLanes;
    for (int64_t run = first; run < kRuns; run += kThreads / kLanes) {
      const int64_t begin = run < job.runs.count ? job.runs.first(run) : 0;
      double mine = 0;
      for (int64_t i = lane; i < whole && run < job.runs.count; i += kLanes) mine += square(job, begin + i);
      double sum = 0;
      for (int from = 0; from < kLanes; ++from) sum += __shfl_sync(kAllLanes, mine, from, kLanes);
      if (lane != 0 || run >= job.runs.count) continue;
      for (int64_t i = whole; i < n; ++i) sum += square(job, begin + i);
      sums.of_run[run] = sum;
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int64_t run = 0; run < job.runs.count; ++run) *job.to += job.unit * sums.of_run[run];
  }
};

// --- balances --------------------------------------------------------------------------------------------------------

// One block, as the check is rare: each thread has one lane of the total.
struct FindTotal {
  struct Job {
    const float* values;
    const float* others;  // may be null
    int64_t n;
    Total* to;
  };
  struct Lanes {
    double sums[kTotalLanes], squares[kTotalLanes];
  };

  static __device__ void run(const Job& job, uint32_t /*block*/) {
    static_assert(kTotalLanes == kThreads);
    GRADTUNE_SHARED(Lanes, lanes);
    double sum = 0, squares = 0;
    for (int64_t i = threadIdx.x; i < job.n; i += kTotalLanes) {
      const double x = job.others == nullptr ? job.values[i] : job.values[i] + job.others[i];
      sum += counts_negative(i) ? -x : x;
      squares += x * x;
    }
    lanes.sums[threadIdx.x] = sum;
    lanes.squares[threadIdx.x] = squares;
    __syncthreads();
    if (threadIdx.x != 0) return;
    Total total;
    for (int lane = 0; lane < kTotalLanes; ++lane) {
      total.sum += lanes.sums[lane];
      total.squares += lanes.squares[lane];
    }
    *job.to = total;
  }
};

template <class Kernel>
void launch(const typename Kernel::Job& job, int64_t blocks, compress::Queue& queue) {
  Launches<Kernel> launches(queue);
  launches.add(job, blocks);
  launches.finish();
}

template <DType kType>
void drain_as(const DrainJob<kType>& job, compress::Queue& queue) {
  launch<DrainRule<kType>>(job, 1, queue);
  launch<DrainApply<kType>>(job, blocks_of(job.n, kThreads * kEach), queue);
}

class CudaKernels final : public Kernels {
 public:
  core::Result<std::unique_ptr<compress::Compressor>> make_compressor(const core::CompressorSpec& spec) const override {
    return make_device_compressor(spec);
  }

  void scale(const compress::Scaling& job, compress::Queue& queue) override {
    const auto n = static_cast<int64_t>(job.values.size());
    launch<Scale>(
        {.values = job.values.data(),
         .residual = job.residual,
         .residual_next = job.residual_next,
         .verdict = job.verdict,
         .n = n,
         .factor = job.factor,
         .aligned = is_aligned(job.values.data()) && is_aligned(job.residual) && is_aligned(job.residual_next)},
        blocks_of(n, kTile), queue);
  }

  void scale(const compress::DoubleScaling& job, compress::Queue& queue) override {
    const auto n = static_cast<int64_t>(job.values.size());
    launch<ScaleDoubles>({.values = job.values.data(), .verdict = job.verdict, .n = n, .factor = job.factor},
                         blocks_of(n, kThreads * kEach), queue);
  }

  void scale(const NumbersScaling& job, compress::Queue& queue) override {
    if (job.dtype == DType::bf16) return scale_as<DType::bf16>(job, queue);
    core::check(job.dtype == DType::f16, "numbers of 16 bits are bf16 or f16");
    scale_as<DType::f16>(job, queue);
  }

  void make_nans_alike(std::byte* numbers, DType dtype, int64_t n, compress::Queue& queue) override {
    const int64_t blocks = blocks_of(n, kThreads * kEach);
    switch (dtype) {
      case DType::f32:
        return launch<NansAlike<uint32_t>>({reinterpret_cast<uint32_t*>(numbers), n, 0x7f800000}, blocks, queue);
      case DType::bf16:
        return launch<NansAlike<uint16_t>>({reinterpret_cast<uint16_t*>(numbers), n, 0x7f80}, blocks, queue);
      case DType::f16:
        return launch<NansAlike<uint16_t>>({reinterpret_cast<uint16_t*>(numbers), n, 0x7c00}, blocks, queue);
      case DType::f64:
        return launch<NansAlike<uint64_t>>({reinterpret_cast<uint64_t*>(numbers), n, 0x7ff0000000000000}, blocks,
                                           queue);
    }
  }

  void drain(const Drain& job, Drained& result, compress::Queue& queue) override {
    switch (job.dtype) {
      case DType::f32: return drain_numbers<DType::f32>(job, result, queue);
      case DType::bf16: return drain_numbers<DType::bf16>(job, result, queue);
      case DType::f16: return drain_numbers<DType::f16>(job, result, queue);
      case DType::f64: break;
    }
    core::check(false, "no residual is kept of double precision");
  }

  void drain(const ParkedDrain& job, Drained& result, compress::Queue& queue) override {
    drain_as<DType::f32>({.gradient = job.gradient,
                          .residual = job.residual,
                          .residual_next = nullptr,
                          .n = job.n,
                          .result = &result,
                          .left_before = job.left_before,
                          .unused = 0},
                         queue);
  }

  void add_squares(const RunSquares& job, compress::Queue& queue) override {
    launch<SumSquares>({.values = job.values,
                        .others = job.others,
                        .runs = runs_of(job.range, job.step),
                        .to = job.to,
                        .unit = job.unit,
                        .sign = job.sign,
                        .unused = 0},
                       1, queue);
  }

  void find_total(const TotalOf& job, compress::Queue& queue) override {
    launch<FindTotal>({.values = job.values, .others = job.others, .n = job.n, .to = job.to}, 1, queue);
  }

 private:
  template <DType kType>
  static void scale_as(const NumbersScaling& job, compress::Queue& queue) {
    launch<ScaleNumbers<kType>>({.numbers = reinterpret_cast<uint16_t*>(job.numbers),
                                 .verdict = job.verdict,
                                 .n = job.n,
                                 .factor = job.factor,
                                 .largest = compress::largest_that_sums(kType, job.summed)},
                                blocks_of(job.n, kThreads * kEach), queue);
  }

  template <DType kType>
  static void drain_numbers(const Drain& job, Drained& result, compress::Queue& queue) {
    drain_as<kType>({.gradient = reinterpret_cast<typename Element<kType>::Stored*>(job.gradient),
                     .residual = const_cast<float*>(job.residual),
                     .residual_next = job.residual_next,
                     .n = job.n,
                     .result = &result,
                     .left_before = 1,
                     .unused = 0},
                    queue);
  }
};

}  // namespace

core::Result<std::unique_ptr<Kernels>> make_kernels(int device) {
  if (core::Status can = compress::cuda::can_run<Scale>(device); !can.ok()) return can.error();
  return std::unique_ptr<Kernels>(std::make_unique<CudaKernels>());
}

}  // namespace gradtune::exec::cuda
