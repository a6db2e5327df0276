// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Shared parts of the SIMD kernels of this folder. Compiled once per target by Highway (foreach_target.h), hence the
// unusual include guard. Kernels compute a tile of results in the L1 cache and hand it on; only this header knows how
// the tile then reaches memory.
#if defined(GRADTUNE_ENGINE_COMPRESS_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADTUNE_ENGINE_COMPRESS_SIMD_INL_H_
#undef GRADTUNE_ENGINE_COMPRESS_SIMD_INL_H_
#else
#define GRADTUNE_ENGINE_COMPRESS_SIMD_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "engine/compress/shared.h"

HWY_BEFORE_NAMESPACE();
namespace gradtune::compress::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Elements of a tile: 1 KiB of fp32. The start-up costs of loops are small against it. A processor executes a few
// hundred instructions ahead, which reaches from one tile into the next. So memory stays busy while a tile is read
// again or written.
inline constexpr size_t kTile = 256;

// Calls body(d, i) for vectors that cover [0, n): whole vectors first, then single lanes.
template <class Body>
HWY_INLINE void for_vectors(size_t n, const Body& body) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> lane;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) body(d, i);
  for (; i < n; ++i) body(lane, i);
}

// Calls body(d, i) -> one bit per lane in the same way, and passes 64 of them at a time to use(first element, bits).
template <class Body, class Use>
HWY_INLINE void for_words(size_t n, const Body& body, const Use& use) {
  const hn::CappedTag<float, 64> d;
  const hn::CappedTag<float, 1> lane;
  size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    uint64_t bits = 0;
    for (size_t j = 0; j < 64; j += hn::Lanes(d)) bits |= body(d, i + j) << j;
    use(i, bits);
  }
  if (i == n) return;
  uint64_t bits = 0;
  for (size_t j = 0; i + j < n; ++j) bits |= body(lane, i + j) << j;
  use(i, bits);
}

// Calls body(block, begin, end) for the parts of blocks that [begin, end) covers.
template <class Body>
HWY_INLINE void for_parts(size_t begin, size_t end, size_t block, const Body& body) {
  for (size_t b = begin / block; begin < end; ++b) {
    const size_t stop = std::min(end, (b + 1) * block);
    body(b, begin, stop);
    begin = stop;
  }
}

// Payloads whose values are added up before the sum is stored; the registers can hold the state of this many. Reading
// payloads in step and storing the sum once keeps memory busier than several passes over some of them.
inline constexpr size_t kAtOnce = 8, kFew = 4;
// The number of payloads to take if `payloads` are left. Loops are compiled for each number up to kFew, and for
// kAtOnce.
constexpr size_t at_once(size_t payloads) { return payloads >= kAtOnce ? kAtOnce : std::min(payloads, kFew); }

// Decoders whose payloads have a cost per tile take larger tiles, and the largest for many payloads.
inline constexpr size_t kMostOfTile = 4 * kTile;
inline size_t tile_of(size_t payloads) { return payloads <= kFew ? 2 * kTile : kMostOfTile; }

// Calls body(N) with N = count as an integral constant, for the counts that at_once returns. Loops over payloads are
// compiled for each of them.
template <class Body>
HWY_INLINE void with_count(size_t count, const Body& body) {
  switch (count) {
    case 1: return body(std::integral_constant<size_t, 1>());
    case 2: return body(std::integral_constant<size_t, 2>());
    case 3: return body(std::integral_constant<size_t, 3>());
    case kFew: return body(std::integral_constant<size_t, kFew>());
    default: return body(std::integral_constant<size_t, kAtOnce>());
  }
}

// p = gradient + residual, if any.
template <class D>
HWY_INLINE hn::Vec<D> load_p(D d, const float* gradient, const float* residual, size_t i) {
  const auto g = hn::LoadU(d, gradient + i);
  return residual == nullptr ? g : hn::Add(g, hn::LoadU(d, residual + i));
}

// True if the vector of element i is the first of a cache line.
template <class T, class D>
HWY_INLINE bool begins_line(D d, size_t i) {
  constexpr size_t kLine = 64 / sizeof(T);
  return hn::MaxLanes(d) >= kLine || i % kLine == 0;
}

// Prefetches the cache line of element i, to be read soon.
template <class D, class T>
HWY_INLINE void prefetch(D d, const T* from, size_t i) {
  if (begins_line<T>(d, i)) hwy::Prefetch(from + i);
}
// Prefetches from memory to the L2 cache, to be read later. The L1 cache can wait for fewer lines at a time than keep
// memory busy, and loads of lines that are already there have to wait for room among them.
template <class D, class T>
HWY_INLINE void prefetch_far(D d, const T* from, size_t i) {
  if (begins_line<T>(d, i)) __builtin_prefetch(from + i, 0, 2);
}

// Prefetch distance in elements, for kernels that read several payloads or data in the L2 cache. By itself a
// processor reads ahead only while it reads, and not beyond a page.
inline constexpr size_t kAhead = 1024;

template <class D>
HWY_INLINE void prefetch_p(D d, const float* gradient, const float* residual, size_t i) {
  prefetch(d, gradient, i);
  if (residual != nullptr) prefetch(d, residual, i);
}
template <class D>
HWY_INLINE void prefetch_p_far(D d, const float* gradient, const float* residual, size_t i) {
  prefetch_far(d, gradient, i);
  if (residual != nullptr) prefetch_far(d, residual, i);
}

// Prefetches for an array that is read from one end to the other, at element i. It asks for memory 8 KiB ahead, since
// nothing is requested while norms are made and random bits drawn, and for the L2 cache two tiles ahead.
template <class D>
HWY_INLINE void prefetch_behind(D d, const float* numbers, size_t i) {
  prefetch_far(d, numbers, i + 8 * kTile);
  prefetch(d, numbers, i + 2 * kTile);
}
template <class D>
HWY_INLINE void prefetch_behind(D d, const float* gradient, const float* residual, size_t i) {
  prefetch_behind(d, gradient, i);
  if (residual != nullptr) prefetch_behind(d, residual, i);
}

template <class D, class M>
HWY_INLINE uint64_t bits_of(D d, M mask) {
  uint64_t bits = 0;
  hn::StoreMaskBits(d, mask, reinterpret_cast<uint8_t*>(&bits));
  return bits;
}

// The bits of |v|, as integers that are ordered as the values are.
template <class D, class V = hn::Vec<D>>
HWY_INLINE auto abs_bits(D /*d*/, V v) {
  const hn::RebindToSigned<D> di;
  return hn::And(hn::BitCast(di, v), hn::Set(di, 0x7fffffff));
}

// The 16 bits of the nearest bfloat16, ties to even. A NaN keeps its sign and becomes quiet, since rounding could
// carry it over to zero.
template <class D, class V = hn::Vec<D>>
HWY_INLINE auto bf16_bits(D d, V v) {
  const hn::RebindToSigned<D> di;
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, v);
  const auto high = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(high, hn::Set(du, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff))));
  const auto nan = hn::RebindMask(du, hn::Gt(abs_bits(d, v), hn::Set(di, 0x7f800000)));
  return hn::IfThenElse(nan, hn::Or(high, hn::Set(du, 0x40)), rounded);
}

// The mask of lanes whose bits are set, for the bits from bit i on; i is a multiple of the number of lanes, or of 8.
template <class D>
HWY_INLINE hn::Mask<D> mask_at(D d, const uint8_t* bits, size_t i) {
  if constexpr (hn::MaxLanes(D()) >= 8) {
    uint8_t enough[8] = {};  // Highway loads whole bytes, perhaps more of them than there are lanes
    std::memcpy(enough, bits + i / 8, hn::MaxLanes(d) / 8);
    return hn::LoadMaskBits(d, enough);
  } else {
    const hn::RebindToUnsigned<D> du;
    const auto of_lane = hn::Shl(hn::Set(du, 1), hn::Iota(du, 0));
    return hn::RebindMask(d, hn::TestBit(hn::Set(du, uint32_t{bits[i / 8]} >> i % 8), of_lane));
  }
}

// The largest of the abs_bits that body(d, i) returns for vectors that cover [0, n).
template <class Body>
HWY_INLINE uint32_t largest_of(size_t n, const Body& body) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> lane;
  const hn::RebindToSigned<decltype(d)> di;
  auto largest = hn::Zero(di);
  int32_t last = 0;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) largest = hn::Max(largest, body(d, i));
  for (; i < n; ++i) last = std::max(last, hn::GetLane(body(lane, i)));
  return static_cast<uint32_t>(std::max(last, hn::GetLane(hn::MaxOfLanes(di, largest))));
}

// Lane l of the result is v[l ^ kStride]; kStride is a power of two below the number of lanes.
template <size_t kStride, class D>
HWY_INLINE hn::Vec<D> exchange(D d, hn::Vec<D> v) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kStride == 1) return hn::Reverse2(d, v);
  if constexpr (kStride == 2) return hn::Shuffle1032(v);
  if constexpr (kStride == 4) return hn::SwapAdjacentBlocks(v);
  if constexpr (kStride == 8) return hn::ConcatLowerUpper(d, v, v);  // of 16 lanes
#endif
  return v;
}

// Adds pairs that are four apart, then two, then one.
HWY_INLINE double sum_of_eight(const double* v) {
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

// The Euclidean norm of p, which is the same for every size of vectors. In fp64 squares are exact: none overflows or
// vanishes, and a fused addition gives the same result as a separate one. Element i goes to one of 32 partial sums,
// so few additions have to wait for the one before.
HWY_INLINE double euclidean_norm(const float* gradient, const float* residual, size_t n) {
  const hn::CappedTag<double, 8> d;
  const hn::Rebind<float, decltype(d)> df;
  const hn::CappedTag<float, 1> one;
  HWY_ALIGN double sums[8];
  const size_t whole = n / 32 * 32;
  for (size_t lane = 0; lane < 8; lane += hn::Lanes(d)) {
    const auto added = [&](size_t i, auto sum) HWY_ATTR {
      const auto p = hn::PromoteTo(d, load_p(df, gradient, residual, i));
      return hn::MulAdd(p, p, sum);
    };
    auto first = hn::Zero(d), second = first, third = first, fourth = first;
    for (size_t i = lane; i < whole; i += 32) {
      for (size_t line = 0; lane == 0 && line < 32; line += 16) prefetch_behind(one, gradient, residual, i + line);
      first = added(i, first);
      second = added(i + 8, second);
      third = added(i + 16, third);
      fourth = added(i + 24, fourth);
    }
    hn::Store(hn::Add(hn::Add(first, second), hn::Add(third, fourth)), d, sums + lane);
  }
  for (size_t i = whole; i < n; ++i) {
    const double p = residual == nullptr ? gradient[i] : gradient[i] + residual[i];
    sums[i % 8] += p * p;
  }
  return std::sqrt(sum_of_eight(sums));
}

// Adds pairs that are 8 apart, then 4, then 2, then 1. The contents of `sums` are lost.
HWY_INLINE float sum_of_sixteen(float* sums) {
  const hn::CappedTag<float, 16> d;
  constexpr size_t kLanes = hn::MaxLanes(decltype(d)());
  for (size_t half = 8; half >= kLanes; half /= 2) {
    for (size_t i = 0; i < half; i += kLanes) {
      hn::Store(hn::Add(hn::Load(d, sums + i), hn::Load(d, sums + i + half)), d, sums + i);
    }
  }
  auto sum = hn::Load(d, sums);
  if constexpr (kLanes > 8) sum = hn::Add(sum, exchange<8>(d, sum));
  if constexpr (kLanes > 4) sum = hn::Add(sum, exchange<4>(d, sum));
  if constexpr (kLanes > 2) sum = hn::Add(sum, exchange<2>(d, sum));
  if constexpr (kLanes > 1) sum = hn::Add(sum, exchange<1>(d, sum));
  return hn::GetLane(sum);
}

// The norm in single precision, with a third of the instructions: squares are added up in 16 partial sums. If they
// could overflow or lose precision, they are computed in fp64 after all.
HWY_INLINE float quick_norm(const float* gradient, const float* residual, size_t n) {
  const hn::CappedTag<float, 16> d;
  HWY_ALIGN float sums[16];
  const size_t whole = n / 32 * 32;
  for (size_t lane = 0; lane < 16; lane += hn::Lanes(d)) {
    const auto added = [&](size_t i, auto sum) HWY_ATTR {
      const auto p = load_p(d, gradient, residual, i);
      return hn::Add(hn::Mul(p, p), sum);  // rounded twice on all targets
    };
    auto first = hn::Zero(d), second = first;
    for (size_t i = lane; i < whole; i += 32) {
      first = added(i, first);
      second = added(i + 16, second);
    }
    hn::Store(hn::Add(first, second), d, sums + lane);
  }
  for (size_t i = whole; i < n; ++i) {
    const float p = residual == nullptr ? gradient[i] : gradient[i] + residual[i];
    sums[i % 16] += p * p;
  }
  const float squares = sum_of_sixteen(sums);
  const bool is_safe = squares > 0x1p-80F && squares < 0x1p120F;
  return is_safe ? std::sqrt(squares) : static_cast<float>(euclidean_norm(gradient, residual, n));
}

// Writes past the caches: whole cache lines by streaming stores, the remainders at both ends by plain ones.
HWY_INLINE void stream(const void* from, void* to, size_t bytes) {
  const auto* source = static_cast<const uint8_t*>(from);
  auto* target = static_cast<uint8_t*>(to);
  const hn::CappedTag<uint8_t, 64> d;
  size_t i = std::min<size_t>(bytes, -reinterpret_cast<uintptr_t>(target) % 64);
  std::memcpy(target, source, i);
  for (; i + 64 <= bytes; i += 64) {
    for (size_t j = i; j < i + 64; j += hn::Lanes(d)) hn::Stream(hn::LoadU(d, source + j), d, target + j);
  }
  std::memcpy(target + i, source + i, bytes - i);
}

// Memory for the tiles of an output, which are computed one after the other. A tile is in place, or in the L1 cache,
// from where it is streamed to its place. An output that is not wanted is null, and so are its tiles.
//
// Only whole cache lines are streamed. A line that two tiles share waits for the second one. To store to a part of it
// the processor would have to read it first, and all later stores would wait for that read.
template <class T, size_t kMost = kTile>
class Output {
 public:
  Output(T* target, bool streamed) : target_(target), streamed_(streamed && target != nullptr) {}
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  // Writes the rest, and flushes it: streaming stores are not ordered with later stores by themselves.
  HWY_INLINE ~Output() {
    if (!streamed_) return;
    if (to_ > from_) write(to_);
    hwy::FlushStream();
  }

  // Returns a tile of at most kMost elements, which follow those of the tile before. The caller passes `begin`
  // although it is known: a pointer that moves from tile to tile costs int8 5 % of its speed.
  HWY_INLINE T* tile(size_t begin) {
    if (!streamed_) return offset(target_, begin);
    if (line_ == nullptr) {
      const size_t in_line = reinterpret_cast<uintptr_t>(target_ + begin) % kLine / sizeof(T);
      line_ = target_ + begin - in_line;
      from_ = to_ = in_line;
    }
    return tile_ + to_;
  }
  HWY_INLINE void finish_tile(size_t count) {
    if (!streamed_) return;
    to_ += count;
    const size_t whole = to_ / kInLine * kInLine;
    if (whole == 0) return;
    if (from_ > 0) write(std::min(to_, kInLine));
    for (size_t i = from_; i < whole; i += kInLine) stream_line(i);
    line_ += whole;
    std::memcpy(tile_, tile_ + whole, kLine);
    from_ = 0;
    to_ -= whole;
  }

 private:
  static constexpr size_t kLine = 64, kInLine = kLine / sizeof(T);

  HWY_INLINE void write(size_t end) {
    std::memcpy(line_ + from_, tile_ + from_, (end - from_) * sizeof(T));
    from_ = end;
  }
  HWY_INLINE void stream_line(size_t i) {
    const hn::CappedTag<T, kInLine> d;
    for (size_t j = i; j < i + kInLine; j += hn::Lanes(d)) hn::Stream(hn::Load(d, tile_ + j), d, line_ + j);
  }

  HWY_ALIGN T tile_[kMost + 2 * kInLine];  // from the start of a cache line on
  T* target_;
  T* line_ = nullptr;         // the address that tile_ belongs to
  size_t from_ = 0, to_ = 0;  // the part of tile_ that is still to be written
  bool streamed_;
};

// A destination of vectors: past the caches, if vectors make whole cache lines.
struct Place {
  float* to;
  bool past_caches;

  template <class D, class V>
  HWY_INLINE void store(V v, D d, size_t i) const {
    if (past_caches && hn::MaxLanes(d) > 1) {
      hn::Stream(v, d, to + i);
    } else {
      hn::StoreU(v, d, to + i);
    }
  }
};

// A destination of sums of payloads, tile by tile: each pass over some of the payloads stores to pass(). If vectors
// make whole cache lines of the result, the last pass stores past the caches from registers. Memory then alternates
// between reads and writes line by line, and sums of eight payloads take a fifth less time than by tiles.
class SumOutput {
 public:
  // Vectors are stored at offsets that are multiples of `piece` elements.
  SumOutput(float* target, bool streamed, size_t piece)
      : tiles_(target, streamed),
        target_(target),
        direct_(streamed && reinterpret_cast<uintptr_t>(target) % 64 == 0 && piece % 16 == 0) {}
  SumOutput(const SumOutput&) = delete;
  SumOutput& operator=(const SumOutput&) = delete;
  HWY_INLINE ~SumOutput() {}  // compiled for this target, which a defaulted one would not be

  HWY_INLINE Place pass(size_t begin, bool is_last) {
    return direct_ && is_last ? Place{target_ + begin, true} : Place{tiles_.tile(begin), false};
  }
  HWY_INLINE void finish_tile(size_t count) {
    if (!direct_) tiles_.finish_tile(count);
  }

 private:
  Output<float, kMostOfTile> tiles_;
  float* target_;
  bool direct_;
};

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradtune::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
