// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Kernels that select the largest elements: the bound, the candidates that reach it, and the threshold among them
// (topk.cu describes how they work together).
#pragma once

#include "engine/compress/cuda/frames.cuh"
#include "engine/compress/topk/topk_kernels.h"
#include "engine/compress/topk/topk_layout.h"
#include "engine/core/rng.h"

namespace gradtune::compress::cuda {

constexpr int kChunk = kBlockElements, kEach = kChunk / kThreads, kQuads = kEach / 4, kStep = kThreads * 4;
constexpr int kSampleBins = 4096, kSampleShift = 19;
constexpr int64_t kSampleGroups = 4096, kSampleGroup = 4, kElementsPerGroup = 64;

// The threshold is found by digits of |p|: 11 bits, then 10, then 10.
constexpr int kRounds = 3;
constexpr uint32_t kBins = 2048;
__device__ __forceinline__ int shift_of(int round) { return round == 0 ? 20 : round == 1 ? 10 : 0; }

struct State {
  uint32_t bound;      // of candidates
  uint32_t found;      // number of candidates
  uint32_t largest;    // bits of the largest |p| of candidates
  uint32_t threshold;  // elements above it are sent, and some of those at it
  uint32_t rank;       // of the threshold, among those that have its digits so far
  uint32_t count;      // number of sent elements
  float decay;         // of the momentum
  uint32_t steps;
  bool carried;  // the bound
  bool again;    // it was too high: candidates are collected once more
  bool finite;
  bool searches;   // for the threshold, among candidates or
  bool in_all;     // ... all elements
  bool zeros_tie;  // fewer than k elements are not zero
};

struct Chunk {
  uint32_t pool_at, pool_count;  // its candidates
  uint32_t above, ties;          // elements above and at the threshold; later: ties that are sent
  uint32_t sent_at, unused;
};

struct TopkJob {
  Elements of;
  const float* momentum;  // before, or null
  float* momentum_next;
  const uint32_t* carried;  // bound and steps, or null
  uint32_t* carried_next;
  uint32_t* header;
  uint32_t* starts;
  uint16_t* positions;
  uint16_t* values;
  State* state;
  Chunk* chunks;
  uint32_t* bins;
  Candidate* pool;
  uint32_t pool_size, k, chunk_count, id;
  int64_t starts_room, sent_room;  // with padding
};

__device__ __forceinline__ uint32_t key_of(float p) { return abs_bits(p); }
__device__ __forceinline__ float momentum_of(float decay, float before, float gradient) {
  return before * decay + gradient * (1 - decay);
}

__device__ __forceinline__ float p_of(const TopkJob& job, float decay, int64_t i) {
  float p = job.of.gradient[i];
  if (job.momentum != nullptr) p = momentum_of(decay, job.momentum[i], p);
  return job.of.residual == nullptr ? p : p + job.of.residual[i];
}

__device__ __forceinline__ float error_of_unsent(const TopkJob& job, float p) { return job.of.unsent_factor * p; }
__device__ __forceinline__ float error_of_sent(const TopkJob& job, float p) {
  return job.of.unsent_factor * p - job.of.error_scale * widen_bf16(narrow_bf16(job.of.scale * p));
}

// --- The bound.

// Bins from the highest down. Each thread has some that follow one another.
template <int kCount>
struct Descending {
  static constexpr int kEachBin = kCount / static_cast<int>(kThreads);
  static __device__ __forceinline__ uint32_t bin(int i) { return kCount - 1 - (threadIdx.x * kEachBin + i); }
};

struct Sample {
  uint32_t bins[kSampleBins];
  uint32_t sums[kWarps];
};

// The first element of a group of the sample, as topk_select.cc has it.
__device__ __forceinline__ int64_t first_of_group(int64_t group, int64_t groups, int64_t n) {
  const int64_t begin = group * n / groups, end = (group + 1) * n / groups - kSampleGroup;
  const uint64_t random = core::Rng(static_cast<uint64_t>(group)).next();
  return begin + static_cast<int64_t>(__umul64hi(random, static_cast<uint64_t>(end - begin)));
}

// Estimates a bound from a sample and writes it to `bound`. One block of threads.
__device__ __forceinline__ void guess_bound(const TopkJob& job, float decay, Sample& sample, uint32_t* bound) {
  const int64_t most = job.of.n / kElementsPerGroup, groups = most < kSampleGroups ? most : kSampleGroups;
  for (int bin = static_cast<int>(threadIdx.x); bin < kSampleBins; bin += kThreads) sample.bins[bin] = 0;
  if (threadIdx.x == 0) *bound = 1;
  __syncthreads();
  if (groups == 0) return;
  for (int64_t group = threadIdx.x; group < groups; group += kThreads) {
    const int64_t first = first_of_group(group, groups, job.of.n);
    for (int64_t i = first; i < first + kSampleGroup; ++i) {
      atomicAdd(&sample.bins[key_of(p_of(job, decay, i)) >> kSampleShift], 1U);
    }
  }
  __syncthreads();
  using Bins = Descending<kSampleBins>;
  uint32_t own = 0, total;
#pragma unroll
  for (int i = 0; i < Bins::kEachBin; ++i) own += sample.bins[Bins::bin(i)];
  uint32_t before = exclusive_sum_of_block(own, sample.sums, total);
  const double expected =
      static_cast<double>(groups * kSampleGroup) * static_cast<double>(job.k) / static_cast<double>(job.of.n);
  const double wanted = 1.25 * expected + 4 * sqrt(expected) + 8;
  for (int i = 0; i < Bins::kEachBin; ++i) {
    const uint32_t bin = Bins::bin(i), reached = before + sample.bins[bin];
    if (bin > 0 && before < wanted && reached >= wanted) {
      const double share = (wanted - before) / sample.bins[bin];  // as if its values were spread evenly
      const uint32_t found = ((bin + 1) << kSampleShift) - static_cast<uint32_t>(share * (1 << kSampleShift));
      *bound = found < kInfinityBits ? found : kInfinityBits;
    }
    before = reached;
  }
}

// Reads the carried state, and estimates a bound if none is carried.
struct Begin {
  using Job = TopkJob;

  static __device__ void run(const Job& job, uint32_t /*block*/) {
    GRADTUNE_SHARED(Sample, sample);
    const uint32_t bound = job.carried == nullptr ? 0 : job.carried[0];
    const uint32_t steps = job.carried == nullptr            ? 0
                           : job.carried[1] < kTopkMostSteps ? job.carried[1]
                                                             : kTopkMostSteps;
    float decay = 0;
    if (job.momentum != nullptr) {
      double weight = 0;  // of all gradients so far, where the last one weighs 1
      for (uint32_t step = 0; step < steps; ++step) weight = 1 + double{kTopkMomentum} * weight;
      decay = static_cast<float>(double{kTopkMomentum} * weight / (1 + double{kTopkMomentum} * weight));
    }
    for (uint32_t bin = threadIdx.x; bin < kBins; bin += kThreads) job.bins[bin] = 0;
    if (threadIdx.x == 0) {
      *job.state = {.bound = bound,
                    .found = 0,
                    .largest = 0,
                    .threshold = 0,
                    .rank = 0,
                    .count = job.k,
                    .decay = decay,
                    .steps = steps,
                    .carried = bound != 0,
                    .again = false,
                    .finite = true,
                    .searches = false,
                    .in_all = false,
                    .zeros_tie = false};
    }
    if (bound == 0) {
      __syncthreads();
      guess_bound(job, decay, sample, &job.state->bound);
    }
  }
};

// Replaces a carried bound that is too high: fewer than half of k elements reach it.
struct Check {
  using Job = TopkJob;

  static __device__ void run(const Job& job, uint32_t /*block*/) {
    GRADTUNE_SHARED(Sample, sample);
    if (!job.state->carried || 2 * uint64_t{job.state->found} >= job.k) return;
    guess_bound(job, job.state->decay, sample, &job.state->bound);
    __syncthreads();
    if (threadIdx.x != 0) return;
    job.state->again = true;
    job.state->found = 0;
  }
};

// --- Candidates.

// The places of the elements that threads keep of a chunk, ascending by element. The quads of a thread are a step
// apart.
struct Places {
  uint32_t counts[kQuads * kWarps];  // of a warp in a step; later the sum of all before it
  uint32_t base, total;
};

// Computes from `own`, the number of elements that a thread keeps in each quad, how many are kept before them in the
// chunk. Numbers of a warp fit 8 bits, so four are packed into a word.
__device__ __forceinline__ void find_places(const uint32_t (&own)[kQuads], Places& places, uint32_t (&before)[kQuads]) {
  const unsigned lane = lane_of_warp();
  static_assert(kQuads == 8 && kQuads * kWarps == 64);
  uint32_t packed[2] = {};
#pragma unroll
  for (int g = 0; g < kQuads; ++g) packed[g / 4] |= own[g] << 8 * (g % 4);
  const uint32_t inclusive[2] = {inclusive_sum(packed[0], lane), inclusive_sum(packed[1], lane)};
#pragma unroll
  for (int g = 0; g < kQuads; ++g) {
    const uint32_t sum = inclusive[g / 4] >> 8 * (g % 4) & 0xff;
    before[g] = sum - own[g];
    if (lane == 31) places.counts[g * kWarps + warp_of_block()] = sum;
  }
  __syncthreads();
  if (warp_of_block() == 0) {
    const uint32_t low = places.counts[2 * lane], high = places.counts[2 * lane + 1];
    const uint32_t sum = inclusive_sum(low + high, lane);
    places.counts[2 * lane] = sum - low - high;
    places.counts[2 * lane + 1] = sum - high;
    if (lane == 31) places.total = sum;
  }
  __syncthreads();
#pragma unroll
  for (int g = 0; g < kQuads; ++g) before[g] += places.counts[g * kWarps + warp_of_block()];
}

// Loads p of a thread's elements of a chunk; p behind the last element is 0. `momentum` is written if momentum is
// kept.
template <bool kWhole>
__device__ __forceinline__ void load_chunk(const TopkJob& job, float decay, int64_t first, Quad (&p)[kQuads],
                                           Quad (&momentum)[kQuads]) {
  if (job.momentum == nullptr) {
    load_p<kWhole>(job.of, first, kStep, p);
    return;
  }
#pragma unroll
  for (int g = 0; g < kQuads; ++g) {
    const Quad gradient = load<kWhole>(job.of.gradient, first + g * kStep, job.of.n);
    const Quad before = load<kWhole>(job.momentum, first + g * kStep, job.of.n);
    Quad residual{};
    if (job.of.residual != nullptr) residual = load<kWhole>(job.of.residual, first + g * kStep, job.of.n);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      momentum[g].at[j] = momentum_of(decay, before.at[j], gradient.at[j]);
      p[g].at[j] = job.of.residual == nullptr ? momentum[g].at[j] : momentum[g].at[j] + residual.at[j];
    }
  }
}

template <bool kAgain>
struct Collect {
  using Job = TopkJob;
  struct Shared {
    Places places;
    uint32_t largest;
  };

  static __device__ void run(const Job& job, uint32_t chunk) {
    GRADTUNE_SHARED(Shared, shared);
    if (kAgain && !job.state->again) return;
    if (job.of.aligned && int64_t{chunk + 1} * kChunk <= job.of.n) {
      collect<true>(job, chunk, shared);
    } else {
      collect<false>(job, chunk, shared);
    }
  }

  template <bool kWhole>
  static __device__ __forceinline__ void collect(const Job& job, uint32_t chunk, Shared& shared) {
    const float decay = job.state->decay;
    const uint32_t bound = job.state->bound;
    const int64_t first = int64_t{chunk} * kChunk + threadIdx.x * 4;
    const bool banks = job.of.next != nullptr && !job.of.add;
    Quad p[kQuads], momentum[kQuads];
    load_chunk<kWhole>(job, decay, first, p, momentum);
    uint32_t own[kQuads] = {}, before[kQuads], largest = 0;
#pragma unroll
    for (int g = 0; g < kQuads; ++g) {
      Quad missed;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t key = key_of(p[g].at[j]);
        const bool is_candidate = key >= bound;  // and the bound is not 0
        own[g] += is_candidate ? 1 : 0;
        if (is_candidate && key > largest) largest = key;
        missed.at[j] = is_candidate ? error_of_sent(job, p[g].at[j]) : error_of_unsent(job, p[g].at[j]);
        if (job.momentum != nullptr && is_candidate) momentum[g].at[j] = 0;
      }
      if (banks) store<kWhole>(missed, job.of.next, first + g * kStep, job.of.n);
      if (job.momentum != nullptr) store<kWhole>(momentum[g], job.momentum_next, first + g * kStep, job.of.n);
    }
    if (threadIdx.x == 0) shared.largest = 0;
    find_places(own, shared.places, before);
    largest = __reduce_max_sync(kAllLanes, largest);
    if (lane_of_warp() == 0) atomicMax(&shared.largest, largest);
    if (threadIdx.x == 0) {
      shared.places.base = atomicAdd(&job.state->found, shared.places.total);
      job.chunks[chunk] = {shared.places.base, shared.places.total, 0, 0, 0, 0};
    }
    __syncthreads();
    if (threadIdx.x == 0) atomicMax(&job.state->largest, shared.largest);
    const uint64_t base = shared.places.base;
    if (base + shared.places.total > job.pool_size) return;
#pragma unroll
    for (int g = 0; g < kQuads; ++g) {
      auto at = static_cast<uint32_t>(base + before[g]);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (key_of(p[g].at[j]) < bound) continue;
        job.pool[at++] = {static_cast<uint32_t>(first + g * kStep + j), p[g].at[j]};
      }
    }
  }
};

// --- The threshold.

// Decides whether the threshold is known or has to be searched for. One thread.
struct Decide {
  using Job = TopkJob;

  static __device__ void run(const Job& job, uint32_t /*block*/) {
    if (threadIdx.x != 0) return;
    State& state = *job.state;
    const float largest = __uint_as_float(state.largest);
    state.finite =
        is_finite(widen_bf16(narrow_bf16(job.of.scale * largest))) && is_finite(job.of.unsent_factor * largest);
    if (!state.finite) {
      tell_nonfinite(job.of.verdict);
      return;
    }
    if (state.carried && !state.again && state.found < job.k) state.count = state.found;
    if (state.found == state.count) {
      state.threshold = state.bound - 1;
    } else if (state.found < state.count && state.bound == 1) {
      state.threshold = 0;
      state.zeros_tie = true;
    } else {
      state.searches = true;
      state.in_all = state.found < state.count || state.found > job.pool_size;
      state.rank = state.count;
    }
  }
};

// Calls visit(key) for all elements of a chunk that may be at the threshold.
template <class Visit>
__device__ __forceinline__ void for_keys(const TopkJob& job, uint32_t chunk, bool in_all, const Visit& visit) {
  if (in_all) {
    const float decay = job.state->decay;
    const int64_t first = int64_t{chunk} * kChunk;
    for (int i = static_cast<int>(threadIdx.x); i < kChunk && first + i < job.of.n; i += kThreads) {
      visit(key_of(p_of(job, decay, first + i)));
    }
  } else {
    const Chunk& of = job.chunks[chunk];
    for (uint32_t i = threadIdx.x; i < of.pool_count; i += kThreads) visit(key_of(job.pool[of.pool_at + i].value));
  }
}

template <int kRound>
struct CountDigits {
  using Job = TopkJob;
  struct Shared {
    uint32_t bins[kBins];
  };

  static __device__ void run(const Job& job, uint32_t chunk) {
    GRADTUNE_SHARED(Shared, shared);
    if (!job.state->finite || !job.state->searches) return;
    for (uint32_t bin = threadIdx.x; bin < kBins; bin += kThreads) shared.bins[bin] = 0;
    __syncthreads();
    const int shift = shift_of(kRound);
    const uint32_t digits = job.state->threshold;  // so far
    for_keys(job, chunk, job.state->in_all, [&](uint32_t key) {
      if (kRound > 0 && (key ^ digits) >> (shift + 10) != 0) return;
      atomicAdd(&shared.bins[key >> shift & (kRound == 0 ? 0x7ff : 0x3ff)], 1U);
    });
    __syncthreads();
    for (uint32_t bin = threadIdx.x; bin < kBins; bin += kThreads) {
      if (shared.bins[bin] != 0) atomicAdd(&job.bins[bin], shared.bins[bin]);
    }
  }
};

// Finds the bin that has the rank. One block of threads.
template <int kRound>
struct PickDigit {
  using Job = TopkJob;
  struct Shared {
    uint32_t sums[kWarps];
  };

  static __device__ void run(const Job& job, uint32_t /*block*/) {
    GRADTUNE_SHARED(Shared, shared);
    if (!job.state->finite || !job.state->searches) return;
    using Bins = Descending<kBins>;
    uint32_t counts[Bins::kEachBin], own = 0, total;
#pragma unroll
    for (int i = 0; i < Bins::kEachBin; ++i) {
      own += counts[i] = job.bins[Bins::bin(i)];
      job.bins[Bins::bin(i)] = 0;
    }
    const uint32_t rank = job.state->rank;
    uint32_t before = exclusive_sum_of_block(own, shared.sums, total);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < Bins::kEachBin; ++i) {
      if (before < rank && rank <= before + counts[i]) {
        job.state->threshold |= Bins::bin(i) << shift_of(kRound);
        job.state->rank = rank - before;
      }
      before += counts[i];
    }
  }
};

}  // namespace gradtune::compress::cuda
