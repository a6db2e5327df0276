// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Writes and checks the header and padding of payloads, and holds the payloads of a decode.
#pragma once

#include "engine/compress/blocks.h"
#include "engine/compress/cuda/elements.cuh"

namespace gradtune::compress::cuda {

// --- Of an encode: header, and zeros between sections and behind them, each less than 16 bytes.
struct Frame {
  std::byte* payload;
  int64_t bytes;
  uint32_t compressor, n, count, unused;
  int64_t gap_begin, gap_end, tail_begin;  // the tail ends with the payload
};

inline Frame frame_of(const Encode& job, uint32_t compressor, const BlockLayout& layout) {
  return {.payload = job.payload.data(),
          .bytes = layout.bytes,
          .compressor = compressor,
          .n = static_cast<uint32_t>(job.gradient.size()),
          .count = static_cast<uint32_t>(layout.blocks),
          .unused = 0,
          .gap_begin = layout.scales_at + layout.scales * layout.scale_bytes,
          .gap_end = layout.codes_at,
          .tail_begin = layout.codes_at + layout.code_bytes};
}

// By one thread of all.
__device__ __forceinline__ void write_frame(const Frame& frame, Verdict* verdict) {
  auto* const header = reinterpret_cast<uint32_t*>(frame.payload);
  header[0] = kPayloadMagic;
  header[1] = frame.compressor;
  header[2] = frame.n;
  header[3] = frame.count;
  for (int64_t i = frame.gap_begin; i < frame.gap_end; ++i) frame.payload[i] = std::byte{0};
  for (int64_t i = frame.tail_begin; i < frame.bytes; ++i) frame.payload[i] = std::byte{0};
  tell_used(verdict, frame.bytes);
}

// --- Of a decode: its payloads, or as many of them as one launch takes.
inline constexpr size_t kMostPayloads = 64;

struct Sums {
  float* out;
  Verdict* verdict;
  int64_t n;
  uint32_t first, count;  // payloads of the call: those of this launch
  bool accumulate;        // true where payloads were added before
  bool aligned;           // out, to 16 bytes
  const std::byte* payloads[kMostPayloads];
};

inline Sums sums_of(const Decode& job, size_t first) {
  Sums sums{.out = job.out.data(),
            .verdict = job.verdict,
            .n = static_cast<int64_t>(job.out.size()),
            .first = static_cast<uint32_t>(first),
            .count = static_cast<uint32_t>(std::min(kMostPayloads, job.payloads.size() - first)),
            .accumulate = job.accumulate || first > 0,
            .aligned = is_aligned(job.out.data()),
            .payloads = {}};
  for (size_t p = 0; p < sums.count; ++p) sums.payloads[p] = job.payloads[first + p].data();
  return sums;
}

// Launches a kernel over the payloads of all jobs, as many of each at a time as there is room for. make(job, sums)
// gives the kernel's job, blocks(job) of how many blocks it is.
template <class Kernel, class Make, class Blocks>
void decode_by(std::span<const Decode> jobs, Queue& queue, const Make& make, const Blocks& blocks) {
  Launches<Kernel> launches(queue);
  for (size_t first = 0, more = 1; more > 0; first += kMostPayloads) {
    more = 0;
    for (const Decode& job : jobs) {
      if (first >= job.payloads.size()) continue;
      launches.add(make(job, sums_of(job, first)), blocks(job));
      more += first + kMostPayloads < job.payloads.size() ? 1 : 0;
    }
    launches.finish();
  }
}

// The values that headers may have (check_frames of shared.h).
struct Frames {
  uint32_t compressor, n, least, most;
};

// By a block's threads, one for each payload.
__device__ __forceinline__ void check_frames(const Frames& frames, const Sums& sums) {
#pragma unroll 1
  for (uint32_t p = threadIdx.x; p < sums.count; p += kThreads) {  // mostly once, by one block
    const auto* const header = reinterpret_cast<const uint32_t*>(sums.payloads[p]);
    const bool good = header[0] == kPayloadMagic && header[1] == frames.compressor && header[2] == frames.n &&
                      frames.least <= header[3] && header[3] <= frames.most;
    if (!good) tell_rejected(sums.verdict, sums.first + p);
  }
}

// True if no encoder sends that scale, because it is negative or not finite.
__device__ __forceinline__ bool is_bad_scale(float scale) { return __float_as_uint(scale) >= kInfinityBits; }

}  // namespace gradtune::compress::cuda
