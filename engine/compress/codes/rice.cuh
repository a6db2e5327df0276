// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Rice's code of groups of 64 integers on a device: the streams of rice_kernels.h, a group to a thread. A group is a
// few words of 64 bits here, with a bit for each element. Codes lie in planes: bit b of group g is planes[b][g].
#pragma once

#include "engine/compress/codes/rice_kernels.h"
#include "engine/compress/cuda/elements.cuh"

namespace gradtune::compress::cuda {

inline constexpr uint32_t kNoDigits = 7;  // in place of k

__device__ __forceinline__ uint64_t first_bits(uint32_t n) { return n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1; }
__device__ __forceinline__ uint32_t count_bits(uint64_t word) { return static_cast<uint32_t>(__popcll(word)); }
__device__ __forceinline__ bool has_first_bits_only(uint64_t mask) { return (mask & (mask + 1)) == 0; }

// The bits of `word`, which are among those of `mask`, side by side; and back.
__device__ __forceinline__ uint64_t gather_bits(uint64_t word, uint64_t mask) {
  if (has_first_bits_only(mask)) return word;
  uint64_t bits = 0;
  for (; word != 0; word &= word - 1) bits |= uint64_t{1} << count_bits(mask & ((word & (0 - word)) - 1));
  return bits;
}
__device__ __forceinline__ uint32_t scatter_half(uint32_t bits, uint32_t mask) {
  uint32_t word = 0;
  for (; mask != 0; mask &= mask - 1, bits >>= 1) word |= (bits & 1) != 0 ? mask & (0 - mask) : 0;
  return word;
}
__device__ __forceinline__ uint64_t scatter_bits(uint64_t bits, uint64_t mask) {
  if (has_first_bits_only(mask)) return bits & mask;
  const auto lower = static_cast<uint32_t>(mask), upper = static_cast<uint32_t>(mask >> 32);
  const uint32_t low = scatter_half(static_cast<uint32_t>(bits), lower);
  const uint32_t high = scatter_half(static_cast<uint32_t>(bits >> __popc(lower)), upper);
  return uint64_t{high} << 32 | low;
}

// Reads the bits of a stream in shared memory from some bit on. A valid stream is read up to its end, any other one up
// to kRiceSlack bytes behind it.
struct BitReader {
  const uint32_t* words;
  uint32_t end;  // bits

  __device__ __forceinline__ uint64_t get(uint32_t at) const {
    at = at < end ? at : end;
    const uint32_t* const from = words + at / 32;
    const uint32_t low = __funnelshift_r(from[0], from[1], at % 32), high = __funnelshift_r(from[1], from[2], at % 32);
    return uint64_t{high} << 32 | low;
  }
};

// Adds n <= 64 bits to a stream of zeros in shared memory, whose words other threads write at the same time. Returns
// where the next ones go.
__device__ __forceinline__ uint32_t put_bits(uint32_t* words, uint32_t at, uint64_t bits, uint32_t n) {
  const auto lower = static_cast<uint32_t>(bits), upper = static_cast<uint32_t>(bits >> 32);
  const uint32_t parts[3] = {lower << at % 32, __funnelshift_l(lower, upper, at % 32),
                             __funnelshift_l(upper, 0, at % 32)};
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    if (parts[i] != 0) atomicOr(words + at / 32 + i, parts[i]);
  }
  return at + n;
}

template <int kBits>
class RiceGroup {
 public:
  // From the codes of n elements in planes. Elements behind them have the code of 0.
  template <size_t kGroups>
  __device__ __forceinline__ RiceGroup(const uint64_t (&planes)[kBits][kGroups], unsigned group, uint32_t n) : n_(n) {
    const uint64_t positive = planes[kBits - 1][group];
    uint64_t carry = positive;
#pragma unroll
    for (int bit = 0; bit < kPlanes; ++bit) {
      const uint64_t code = planes[bit][group];
      magnitudes_[bit] = code ^ (carry | ~positive);
      carry &= code;
      some_ |= magnitudes_[bit];
    }
    negative_ = some_ & ~positive;
    if (some_ == 0) return;
    uint32_t sum = 0, least = ~0U;  // sum: of magnitude >> k
    uint64_t top = ~uint64_t{0};    // where that is the largest there is, and has no digit that ends it
#pragma unroll
    for (int k = kPlanes - 1; k >= 0; --k) {
      sum = 2 * sum + count_bits(magnitudes_[k]);
      top &= magnitudes_[k];
      const uint32_t cost = k * n + sum + n - count_bits(top);
      if (cost > least) continue;
      least = cost;
      k_ = k;
    }
    bits_ = kHeaderBits + least + count_bits(some_);
  }

  __device__ __forceinline__ uint32_t bits() const { return bits_; }

  // The group is garbage afterwards.
  __device__ __forceinline__ void write(uint32_t* words, uint32_t at) {
    at = put_bits(words, at, k_, kHeaderBits);
    if (k_ == kNoDigits) return;
#pragma unroll
    for (uint32_t bit = 0; bit < kPlanes; ++bit) {
      if (bit < k_) at = put_bits(words, at, magnitudes_[bit], n_);
    }
    // The bits above them count down to zero.
    uint64_t alive = first_bits(n_);
    for (uint32_t j = 0; j < kLargest >> k_ && alive != 0; ++j) {
      uint64_t next = 0;
#pragma unroll
      for (uint32_t bit = 0; bit < kPlanes; ++bit) next |= bit >= k_ ? magnitudes_[bit] : 0;
      at = put_bits(words, at, gather_bits(next, alive), count_bits(alive));
      uint64_t borrow = next;
#pragma unroll
      for (uint32_t bit = 0; bit < kPlanes; ++bit) {
        if (bit < k_) continue;
        magnitudes_[bit] ^= borrow;
        borrow &= magnitudes_[bit];
      }
      alive = next;
    }
    put_bits(words, at, gather_bits(negative_, some_), count_bits(some_));
  }

  // Reads one back into planes.
  template <size_t kGroups>
  static __device__ __forceinline__ void read(const BitReader& in, uint32_t at, uint32_t n,
                                              uint64_t (&planes)[kBits][kGroups], unsigned group) {
    uint64_t magnitudes[kPlanes] = {}, some = 0, negative = 0;
    const uint32_t k = in.get(at) & kNoDigits;
    at += kHeaderBits;
    if (k != kNoDigits) {
#pragma unroll
      for (uint32_t bit = 0; bit < kPlanes; ++bit) {
        if (bit >= k) continue;
        magnitudes[bit] = in.get(at) & first_bits(n);
        some |= magnitudes[bit];
        at += n;
      }
      uint64_t alive = first_bits(n);
      for (uint32_t j = 0; j < kLargest >> k && alive != 0; ++j) {
        const uint32_t count = count_bits(alive);
        alive = scatter_bits(in.get(at), alive);
        at += count;
        some |= alive;
        uint64_t carry = alive;
#pragma unroll
        for (uint32_t bit = 0; bit < kPlanes; ++bit) {
          if (bit < k) continue;
          const uint64_t before = magnitudes[bit];
          magnitudes[bit] ^= carry;
          carry &= before;
        }
      }
      negative = scatter_bits(in.get(at), some);
    }
    const uint64_t positive = some & ~negative;
    uint64_t borrow = positive;
#pragma unroll
    for (int bit = 0; bit < kPlanes; ++bit) {
      planes[bit][group] = magnitudes[bit] ^ (borrow | ~positive);
      borrow &= ~magnitudes[bit];
    }
    planes[kBits - 1][group] = positive;
  }

  // Finds the begins of the groups of n > 0 elements: a lane for each part, and all lanes of a warp call it. Returns
  // true if the stream has n elements and ends with them.
  static __device__ __forceinline__ bool find(const BitReader& in, uint32_t n, uint32_t* begins) {
    return __any_sync(kAllLanes, find_part(in, n, lane_of_warp(), begins) ? 0 : 1) == 0;
  }

 private:
  static constexpr int kPlanes = kBits - 1;
  static constexpr uint32_t kLargest = (1 << kPlanes) - 1, kHeaderBits = 3;

  // Returns true if the part has its elements and ends with them, or if there is none.
  static __device__ __forceinline__ bool find_part(const BitReader& in, uint32_t n, uint32_t part, uint32_t* begins) {
    const auto table = static_cast<uint32_t>(rice_table_bits(n));
    if (part * kRicePart >= n) return true;
    const auto begin_of = [&](uint32_t of) {
      const uint64_t bits = of == 0 ? 0 : in.get((of - 1) * kRiceBeginBits) & ((1 << kRiceBeginBits) - 1);
      return table + static_cast<uint32_t>(bits);
    };
    const auto next = static_cast<uint32_t>((part + 1) * kRicePart), last = n < next ? n : next;
    uint32_t at = begin_of(part);
    for (uint32_t i = next - kRicePart; i < last && at <= in.end; i += kRiceGroup) {
      begins[i / kRiceGroup] = at;
      const uint32_t elements = n - i < kRiceGroup ? n - i : kRiceGroup;
      const uint32_t k = in.get(at) & kNoDigits;
      at += kHeaderBits;
      if (k == kNoDigits) continue;
      if (k > kPlanes - 1) return false;
      uint64_t some = 0;
      for (uint32_t bit = 0; bit < k; ++bit, at += elements) some |= in.get(at);
      uint32_t count = elements;
      for (uint32_t j = 0; j < kLargest >> k && count != 0; ++j) {
        const uint64_t word = in.get(at) & first_bits(count);
        if (j == 0) some |= word;
        at += count;
        count = count_bits(word);
      }
      at += count_bits(some & first_bits(elements));
    }
    return last == n ? (at + 63) / 64 * 64 == in.end : at == begin_of(part + 1);
  }

  uint64_t magnitudes_[kPlanes], some_ = 0, negative_ = 0;
  uint32_t n_, k_ = kNoDigits, bits_ = kHeaderBits;
};

}  // namespace gradtune::compress::cuda
