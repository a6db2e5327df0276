// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// `randk` on a device, in one pass. A block of threads has 2048 elements. It draws the elements that the strata among
// them send, marks these, and then writes the errors of all. Decode computes the sums of its elements in shared
// memory.
#include "engine/compress/cuda/device_compressor.h"
#include "engine/compress/cuda/frames.cuh"
#include "engine/compress/cuda/random.cuh"
#include "engine/compress/randk/strata.h"

namespace gradtune::compress::cuda {
namespace {

constexpr int kQuads = 2, kStep = kThreads * 4, kTile = kStep * kQuads;

// The element that a stratum sends, counted like `origin`, the start of the strata.
__device__ __forceinline__ int64_t drawn_of(const StrataLimits& strata, const Philox& philox, int64_t stratum,
                                            int64_t origin) {
  // Each four strata use the random bits of their second element.
  const Words words = shared_words(philox, philox.first_element + strata.begin_of(stratum / 4 * 4) + 1);
  const auto which = static_cast<unsigned>(stratum % 4);
  const uint32_t word = which == 0 ? words.at[0] : which == 1 ? words.at[1] : which == 2 ? words.at[2] : words.at[3];
  const auto size = static_cast<uint64_t>(strata.size_of(stratum));
  return origin + strata.begin_of(stratum) + static_cast<int64_t>(word * size >> 32);
}

// Calls visit(stratum, element) for the sent elements in [begin, end), distributed over the threads of a block.
template <class Visit>
__device__ __forceinline__ void for_sent(const StrataLimits& strata, const Philox& philox, int64_t begin, int64_t end,
                                         const Visit& visit) {
  const int64_t middle = strata.begin < begin ? begin : strata.begin < end ? strata.begin : end;
  for (int side = 0; side < 2; ++side) {  // behind the last element, strata continue at the first one
    const int64_t from = side == 0 ? begin : middle, to = side == 0 ? middle : end;
    if (from >= to) continue;
    const int64_t origin = side == 0 ? strata.begin - strata.n : strata.begin;
    const int64_t last = strata.stratum_of(to - 1 - origin);
    for (int64_t s = strata.stratum_of(from - origin) + threadIdx.x; s <= last; s += kThreads) {
      const int64_t element = drawn_of(strata, philox, s, origin);
      if (from <= element && element < to) visit(s, element);
    }
  }
}

struct RandkEncode {
  struct Job {
    Elements of;
    StrataLimits strata;
    Philox philox;
    float* values;
    int64_t bytes;
  };
  struct Shared {
    uint32_t sent[kTile / 32];
  };

  static __device__ void run(const Job& job, uint32_t block) {
    GRADTUNE_SHARED(Shared, shared);
    if (block == 0 && threadIdx.x == 0) tell_used(job.of.verdict, job.bytes);
    const int64_t begin = int64_t{block} * kTile, end = begin + kTile < job.of.n ? begin + kTile : job.of.n;
    if (begin >= job.of.n) return;
    if (threadIdx.x < kTile / 32) shared.sent[threadIdx.x] = 0;
    __syncthreads();
    if (job.of.aligned && begin + kTile <= job.of.n) {
      encode_tile<true>(job, begin, end, shared);
    } else {
      encode_tile<false>(job, begin, end, shared);
    }
  }

  template <bool kWhole>
  static __device__ __forceinline__ void encode_tile(const Job& job, int64_t begin, int64_t end, Shared& shared) {
    const int64_t first = begin + int64_t{threadIdx.x} * 4;
    Quad p[kQuads];
    load_p<kWhole>(job.of, first, kStep, p);
    for_sent(job.strata, job.philox, begin, end, [&](int64_t stratum, int64_t element) {
      job.values[stratum] = job.of.scale * load_p(job.of, element);
      const auto at = static_cast<uint32_t>(element - begin);
      atomicOr(&shared.sent[at / 32], 1U << at % 32);
    });
    __syncthreads();
    bool good = true;
#pragma unroll
    for (int g = 0; g < kQuads; ++g) {
      const int64_t i = first + g * kStep;
      const auto at = static_cast<uint32_t>(i - begin);
      const uint32_t sent = shared.sent[at / 32] >> at % 32;
      Quad before{};
      if (job.of.add) before = load<kWhole>(job.of.next, i, job.of.n);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float missed = p[g].at[j] * job.of.unsent_factor;
        good &= is_finite(missed) && is_finite(job.of.scale * p[g].at[j]);
        // Sent elements have no error.
        p[g].at[j] = (sent >> j & 1) != 0 ? before.at[j] : job.of.add ? before.at[j] + missed : missed;
      }
      if (job.of.next != nullptr) store<kWhole>(p[g], job.of.next, i, job.of.n);
    }
    if (!good) tell_nonfinite(job.of.verdict);
  }
};

struct RandkDecode {
  struct Job {
    Sums sums;
    StrataLimits strata;
    Philox philox;
  };
  struct Shared {
    float sums[kTile];
  };

  static __device__ void run(const Job& job, uint32_t block) {
    const int64_t begin = int64_t{block} * kTile, end = begin + kTile < job.sums.n ? begin + kTile : job.sums.n;
    if (job.sums.aligned && begin + kTile <= job.sums.n) {
      decode_tile<true>(job, begin, end);
    } else {
      decode_tile<false>(job, begin, end);
    }
  }

  template <bool kWhole>
  static __device__ __forceinline__ void decode_tile(const Job& job, int64_t begin, int64_t end) {
    GRADTUNE_SHARED(Shared, shared);
    const Sums& sums = job.sums;
    const int64_t first = begin + int64_t{threadIdx.x} * 4;
#pragma unroll
    for (int g = 0; g < kQuads; ++g) {
      Quad before{};
      if (sums.accumulate) before = load<kWhole>(sums.out, first + g * kStep, sums.n);
#pragma unroll
      for (int j = 0; j < 4; ++j) shared.sums[first - begin + g * kStep + j] = before.at[j];
    }
    __syncthreads();
    for_sent(job.strata, job.philox, begin, end, [&](int64_t stratum, int64_t element) {
      const auto value_of = [&](uint32_t p) { return reinterpret_cast<const float*>(sums.payloads[p])[stratum]; };
      float& to = shared.sums[element - begin];
      if (sums.accumulate) {
        float sum = to;
        for (uint32_t p = 0; p < sums.count; ++p) sum += value_of(p);
        to = sum;
      } else {
        float sum = value_of(0);
        for (uint32_t p = 1; p < sums.count; ++p) sum += value_of(p);
        to = 0.0F + sum;  // as to a zero: -0 becomes 0
      }
    });
    __syncthreads();
#pragma unroll
    for (int g = 0; g < kQuads; ++g) {
      const auto at = static_cast<uint32_t>(first - begin + g * kStep);
      const Quad sum{{shared.sums[at], shared.sums[at + 1], shared.sums[at + 2], shared.sums[at + 3]}};
      store<kWhole>(sum, sums.out, first + g * kStep, sums.n);
    }
  }
};

class RandK final : public DeviceCompressor {
 public:
  using DeviceCompressor::DeviceCompressor;

 private:
  StrataLimits strata(const Work& work, int64_t n) const {
    return n == 0 ? StrataLimits{} : strata_of(work, n, share_of(spec().parameter, n));
  }

  void enqueue_encode(std::span<const Encode> jobs, Queue& queue) const override {
    Launches<RandkEncode> launches(queue);
    for (const Encode& job : jobs) {
      const auto n = static_cast<int64_t>(job.gradient.size());
      launches.add({.of = elements_of(job),
                    .strata = strata(job.work, n),
                    .philox = philox_of(job.work),
                    .values = reinterpret_cast<float*>(job.payload.data()),
                    .bytes = static_cast<int64_t>(job.payload.size())},
                   std::max<int64_t>(1, blocks_of(n, kTile)));
    }
    launches.finish();
  }

  void enqueue_decode(std::span<const Decode> jobs, Queue& queue) const override {
    decode_by<RandkDecode>(
        jobs, queue,
        [&](const Decode& job, const Sums& sums) -> RandkDecode::Job {
          return {sums, strata(job.work, sums.n), philox_of(job.work)};
        },
        [](const Decode& job) { return blocks_of(static_cast<int64_t>(job.out.size()), kTile); });
  }
};

}  // namespace

std::unique_ptr<Compressor> randk(std::unique_ptr<Compressor> host) { return std::make_unique<RandK>(std::move(host)); }

}  // namespace gradtune::compress::cuda
