// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Payloads of runs that are as long as they turn out: where each ends is sent, and where the last one ends is what the
// payload uses.
#pragma once

#include "engine/compress/cuda/frames.cuh"

namespace gradtune::compress::cuda {

// Makes ends of lengths; returns the last one. By a block of threads; `sums` is as exclusive_sum_of_block needs it.
__device__ __forceinline__ uint32_t add_up_lengths(uint32_t* ends, int64_t runs, uint32_t* sums) {
  uint32_t before = 0;
  for (int64_t first = 0; first < runs; first += kThreads) {
    const int64_t run = first + threadIdx.x;
    const uint32_t length = run < runs ? ends[run] : 0;
    uint32_t total;
    const uint32_t sum = exclusive_sum_of_block(length, sums, total);
    if (run < runs) ends[run] = before + sum + length;
    before += total;
    __syncthreads();
  }
  return before;
}

// In bytes, where ends are told in `unit` bytes.
__device__ __forceinline__ int64_t begin_of(const uint32_t* ends, uint32_t run, int64_t unit) {
  return run == 0 ? 0 : int64_t{ends[run - 1]} * unit;
}

// --- Of an encode: header, and zeros between sections and up to the end of the used bytes.
struct Gap {
  int64_t begin, end;
};

// By one thread of all. `used` is where the last run ends, in bytes.
__device__ __forceinline__ void write_frame(const Elements& of, std::byte* payload, uint32_t compressor, const Gap& one,
                                            const Gap& other, int64_t used) {
  auto* const header = reinterpret_cast<uint32_t*>(payload);
  header[0] = kPayloadMagic;
  header[1] = compressor;
  header[2] = static_cast<uint32_t>(of.n);
  header[3] = static_cast<uint32_t>(round_up(used, kUsedUnit) / kUsedUnit);
  for (int64_t i = one.begin; i < one.end; ++i) payload[i] = std::byte{0};
  for (int64_t i = other.begin; i < other.end; ++i) payload[i] = std::byte{0};
  for (int64_t i = used; i < round_up(used, kUsedUnit); ++i) payload[i] = std::byte{0};
  tell_used(of.verdict, round_up(used, kUsedUnit));
}

// --- Of a decode: whether headers say where the last run ends. `begin` is where the first one begins, in bytes. By
// a block's threads, one for each payload. Without runs there is one header that may be, which check_frames knows.
__device__ __forceinline__ void check_used(const Sums& sums, int64_t ends_at, int64_t runs, int64_t begin,
                                           int64_t unit) {
  if (runs == 0) return;
  for (uint32_t p = threadIdx.x; p < sums.count; p += kThreads) {
    const std::byte* const payload = sums.payloads[p];
    const int64_t end = int64_t{reinterpret_cast<const uint32_t*>(payload + ends_at)[runs - 1]} * unit;
    const int64_t said = reinterpret_cast<const uint32_t*>(payload)[3];
    if (round_up(begin + end, kUsedUnit) != said * kUsedUnit) tell_rejected(sums.verdict, sums.first + p);
  }
}

}  // namespace gradtune::compress::cuda
