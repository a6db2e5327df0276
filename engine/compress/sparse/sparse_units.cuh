// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A block of threads finds the kept units of a tile and walks over their elements (sparse.cu describes its use). A
// tile is a number of consecutive units.
#pragma once

#include <bit>

#include "engine/compress/cuda/frames.cuh"
#include "engine/compress/sparse/sparse_layout.h"

namespace gradtune::compress::cuda {

// The threads that look for bits: a lane for each element; some lanes for each unit; a warp for each unit.
enum class Width : uint32_t { one, narrow, wide };

struct Tiling {
  SparseShape shape;
  uint32_t run;   // units, as the shape's
  uint32_t tile;  // units, a power of two and no more than a run
  Width width;
  uint32_t lane_bits;

  __device__ __forceinline__ int64_t first_of(int64_t tile_number) const { return tile_number * tile; }
};

// Tiles of at most `elements` elements, or of `fewest` units. A unit has as many lanes as elements, rounded down to a
// power of two and at most a warp.
inline Tiling tiling_of(const SparseShape& shape, int64_t elements, int64_t fewest) {
  const auto floor = [](int64_t value) { return std::bit_floor(static_cast<uint64_t>(value)); };
  const auto tile = std::max<uint64_t>(static_cast<uint64_t>(fewest), floor(elements / shape.width));
  const uint64_t lanes = std::min<uint64_t>(32, floor(shape.width));
  return {.shape = shape,
          .run = static_cast<uint32_t>(shape.run()),
          .tile = static_cast<uint32_t>(tile),
          .width = shape.width == 1   ? Width::one
                   : shape.width < 64 ? Width::narrow
                                      : Width::wide,
          .lane_bits = static_cast<uint32_t>(std::countr_zero(lanes))};
}

// The number of elements that a thread loads before it needs the first of them.
constexpr int kAhead = 8;

// Elements, or the sums of elements and residuals if there are residuals.
struct Source {
  const float* elements;
  const float* residuals;  // or null

  __device__ __forceinline__ Source from(int64_t i) const {
    return {elements + i, residuals == nullptr ? nullptr : residuals + i};
  }

  // Loads the elements that exist, and 0 for others. All loads are issued before any result is used.
  template <int kCount>
  __device__ __forceinline__ void load(const uint32_t (&at)[kCount], const bool (&exists)[kCount],
                                       float (&values)[kCount]) const {
#pragma unroll
    for (int a = 0; a < kCount; ++a) values[a] = exists[a] ? elements[at[a]] : 0.0F;
    if (residuals == nullptr) return;
    float more[kCount];
#pragma unroll
    for (int a = 0; a < kCount; ++a) more[a] = exists[a] ? residuals[at[a]] : 0.0F;
#pragma unroll
    for (int a = 0; a < kCount; ++a) values[a] += more[a];
  }
};

// Sets in shared memory the bits of a tile's units that have a nonzero bit. All threads of the block call it.
template <Width kWidth>
__device__ __forceinline__ void mark_units(const Tiling& of, int64_t first, const Source& all, uint32_t* there) {
  for (uint32_t word = threadIdx.x; word * 32 < of.tile; word += kThreads) there[word] = 0;
  __syncthreads();
  const unsigned lane = lane_of_warp(), warp = warp_of_block();
  const int64_t begin = first * of.shape.width, left = of.shape.n - begin;
  uint32_t at[kAhead];
  bool exists[kAhead];
  float values[kAhead];
  if constexpr (kWidth == Width::one) {
    const auto count = static_cast<uint32_t>(left < of.tile ? (left < 0 ? 0 : left) : of.tile);
    const Source source = all.from(begin);
#pragma unroll 1
    for (uint32_t word = warp; word * 32 < of.tile; word += kWarps * kAhead) {
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        at[a] = (word + a * kWarps) * 32 + lane;
        exists[a] = at[a] < count;
      }
      source.load(at, exists, values);
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const uint32_t found = __ballot_sync(kAllLanes, __float_as_uint(values[a]) != 0 ? 1 : 0);
        if (lane == 0) there[word + a * kWarps] = found;
      }
    }
  } else if constexpr (kWidth == Width::narrow) {
    constexpr int kUnits = kAhead / 2;  // since a lane has two elements of a unit at most
    const auto width = static_cast<uint32_t>(of.shape.width), whole = of.tile * width;
    const auto count = static_cast<uint32_t>(left < whole ? (left < 0 ? 0 : left) : whole);
    const Source source = all.from(begin);
    const uint32_t lanes = 1U << of.lane_bits, together = 32 >> of.lane_bits;  // units of a warp at the same time
    const uint32_t offset = lane & (lanes - 1), others = kAllLanes >> (32 - lanes);
    const bool has_two = offset + lanes < width;
#pragma unroll 1
    for (uint32_t unit = warp * together; unit < of.tile; unit += kUnits * kWarps * together) {
#pragma unroll
      for (int a = 0; a < kUnits; ++a) {
        at[2 * a] = (unit + a * kWarps * together + (lane >> of.lane_bits)) * width + offset;
        at[2 * a + 1] = at[2 * a] + lanes;
        exists[2 * a] = at[2 * a] < count;
        exists[2 * a + 1] = has_two && at[2 * a + 1] < count;
      }
      source.load(at, exists, values);
#pragma unroll
      for (int a = 0; a < kUnits; ++a) {
        const uint32_t bits = __float_as_uint(values[2 * a]) | __float_as_uint(values[2 * a + 1]);
        uint32_t found = __ballot_sync(kAllLanes, bits != 0 ? 1 : 0);
        if (found == 0) continue;
        const bool is_there = lane < together && (found >> (lane << of.lane_bits) & others) != 0;
        found = __ballot_sync(kAllLanes, is_there ? 1 : 0);
        const uint32_t to = unit + a * kWarps * together;
        if (lane == 0) atomicOr(&there[to / 32], found << to % 32);
      }
    }
  } else {
    for (uint32_t unit = warp; unit < of.tile; unit += kWarps) {
      int64_t i = begin + unit * of.shape.width;
      const int64_t end = i + of.shape.width < of.shape.n ? i + of.shape.width : of.shape.n;
      uint32_t any = 0;
      for (; i < end; i += 32 * kAhead) {
        const auto length = static_cast<uint32_t>(end - i < 32 * kAhead ? end - i : 32 * kAhead);
#pragma unroll
        for (int a = 0; a < kAhead; ++a) {
          at[a] = 32 * a + lane;
          exists[a] = at[a] < length;
        }
        all.from(i).load(at, exists, values);
#pragma unroll
        for (int a = 0; a < kAhead; ++a) any |= __float_as_uint(values[a]);
      }
      any = __reduce_or_sync(kAllLanes, any);
      if (lane == 0 && any != 0) atomicOr(&there[unit / 32], 1U << unit % 32);
    }
  }
  __syncthreads();
}

// The kept units of a tile, ascending and counted from its first one.
template <int kMost>
struct Listed {
  uint32_t sums[kWarps];
  uint32_t before;
  uint16_t units[kMost];
};

// The number of kept units, and the number of those before a limit within the tile.
struct Found {
  uint32_t count, before;
};

// Lists the kept units by their bits: word(unit) returns the word of 32 that has the bit of that unit at unit % 32,
// for units before the shape's end. All threads of the block call it.
template <int kMost, class Word>
__device__ __forceinline__ Found list_units(const Tiling& of, int64_t first, uint32_t limit, Listed<kMost>& listed,
                                            const Word& word) {
  const uint32_t each = of.tile > kThreads ? of.tile / kThreads : 1, begin = threadIdx.x * each;
  const int64_t left = of.shape.units - first - begin;
  uint32_t bits = 0;
  if (begin < of.tile && left > 0) {
    bits = word(first + begin) >> (first + begin) % 32 & (kAllLanes >> (32 - each));
    if (left < each) bits &= kAllLanes >> (32 - left);
  }
  uint32_t count;
  uint32_t at = exclusive_sum_of_block(static_cast<uint32_t>(__popc(bits)), listed.sums, count);
  if (begin <= limit && limit - begin < each) {
    listed.before = at + static_cast<uint32_t>(__popc(bits & ((1U << (limit - begin)) - 1)));
  }
  for (; bits != 0; bits &= bits - 1) {
    listed.units[at++] = static_cast<uint16_t>(begin + static_cast<uint32_t>(__ffs(static_cast<int>(bits))) - 1);
  }
  __syncthreads();
  return {count, limit < of.tile ? listed.before : count};
}

// An element of a kept unit: the unit's place among the listed ones, and the element's offsets in the unit and in the
// tile.
struct Part {
  uint32_t rank, offset, at;
};

// Calls take(part, value) for the elements at [begin, end) of each listed unit; value is that of the source at
// place(part). All threads of the block call it.
template <int kMost, class Place, class Take>
__device__ __forceinline__ void for_elements(const Tiling& of, int64_t first, uint32_t count, uint32_t begin,
                                             uint32_t end, const Listed<kMost>& listed, const Source& source,
                                             const Place& place, const Take& take) {
  const auto width = static_cast<uint32_t>(of.shape.width);
  const int64_t last = of.shape.units - 1;  // which may be shorter
  const auto last_in_tile = static_cast<uint32_t>(last - first < of.tile ? last - first : of.tile);
  const auto last_length = static_cast<uint32_t>(of.shape.n - last * width);
  const uint32_t last_end = last_length < end ? last_length : end;
  uint32_t lane_bits = of.lane_bits;
  while (count > 0 && count << (lane_bits + 1) <= kThreads && 2U << lane_bits <= end - begin) ++lane_bits;
  const uint32_t lanes = 1U << lane_bits, own = begin + (threadIdx.x & (lanes - 1));
  uint32_t rank = threadIdx.x >> lane_bits, offset = own;
  while (rank < count) {
    Part parts[kAhead];
    uint32_t at[kAhead];
    float values[kAhead];
    bool exists[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const uint32_t unit = rank < count ? listed.units[rank] : 0U;
      exists[a] = rank < count && offset < (unit == last_in_tile ? last_end : end);
      parts[a] = {rank, offset, unit * width + offset};
      at[a] = place(parts[a]);
      offset += lanes;
      if (offset >= end) {
        offset = own;
        rank += kThreads >> lane_bits;
      }
    }
    source.load(at, exists, values);
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (exists[a]) take(parts[a], values[a]);
    }
  }
}

}  // namespace gradtune::compress::cuda
