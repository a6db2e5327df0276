// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Sums of several payloads that send bits. Four bits of an element, from one payload or from several, choose one of
// 16 sums, which are computed once for a block. So an element takes one addition for all of these payloads. Compiled
// once per target by Highway, as simd-inl.h is.
#if defined(GRADTUNE_ENGINE_COMPRESS_BIT_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADTUNE_ENGINE_COMPRESS_BIT_SUMS_INL_H_
#undef GRADTUNE_ENGINE_COMPRESS_BIT_SUMS_INL_H_
#else
#define GRADTUNE_ENGINE_COMPRESS_BIT_SUMS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "engine/compress/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradtune::compress::HWY_NAMESPACE {

inline constexpr size_t kBitsTogether = 4, kBitSums = 1 << kBitsTogether;

// Bits of elements as they are sent: a word holds those of 64 elements. Tiles of decoders have whole vectors of them.
using BitPlanes = hn::CappedTag<uint64_t, 8>;

// One of both planes of 2-bit codes, whose planes alternate word by word; the vector begins at `word`.
HWY_INLINE hn::Vec<BitPlanes> plane_of_two(const uint8_t* planes, size_t plane, size_t word) {
  const BitPlanes d;
  const auto* const words = reinterpret_cast<const uint64_t*>(planes) + 2 * word;
#if HWY_TARGET == HWY_SCALAR
  return hn::LoadU(d, words + plane);
#else
  const auto first = hn::LoadU(d, words), second = hn::LoadU(d, words + hn::Lanes(d));
  return plane == 0 ? hn::ConcatEven(d, second, first) : hn::ConcatOdd(d, second, first);
#endif
}

// The four bits of each element of a tile. A quad of 32-bit words holds those of 32 elements: the bits of element e
// are in word e % 4, from bit e / 4 * 4 on.
class Nibbles {
 public:
  // Fills the nibbles from kCount payloads, the first of which is `first` (add_by_bits).
  template <size_t kCount, class Payloads>
  HWY_INLINE void fill(const Payloads& payloads, size_t first, size_t elements) {
    const BitPlanes d;
    for (size_t word = 0; word * 64 < elements; word += hn::Lanes(d)) {
      auto even = payloads.template plane<kCount>(first, 0, word),
           odd = payloads.template plane<kCount>(first, 1, word);
      auto even_high = payloads.template plane<kCount>(first, 2, word);
      auto odd_high = payloads.template plane<kCount>(first, 3, word);
      interleave<1>(d, 0x5555555555555555, even, odd);
      interleave<1>(d, 0x5555555555555555, even_high, odd_high);
      interleave<2>(d, 0x3333333333333333, even, even_high);
      interleave<2>(d, 0x3333333333333333, odd, odd_high);
      store(even, odd, even_high, odd_high, quads_ + word * 8);
    }
  }

  // The bits of element i, or of the elements from i + kFirst on, where i is a multiple of 32. Bits of other elements
  // are above them.
  HWY_INLINE uint32_t at(size_t i) const { return quads_[i / 32 * 4 + i % 4] >> i % 32 / 4 * 4; }
  template <size_t kFirst, class D>
  HWY_INLINE hn::Vec<D> at(D d, size_t i) const {
    const auto quarters = hn::Add(hn::ShiftRight<2>(hn::Iota(d, 0)), hn::Set(d, uint32_t{kFirst / 4}));
    return hn::Shr(hn::LoadDup128(d, quads_ + i / 8), hn::ShiftLeft<2>(quarters));
  }

 private:
  // Exchanges parts of kShift bits: `a` becomes the lower parts of a and b, and `b` becomes their upper parts.
  template <int kShift, class V>
  static HWY_INLINE void interleave(BitPlanes d, uint64_t mask, V& a, V& b) {
    const auto low = hn::Set(d, mask), high = hn::Set(d, ~mask);
    const auto first = hn::OrAnd(hn::And(a, low), hn::ShiftLeft<kShift>(b), high);
    b = hn::OrAnd(hn::And(b, high), hn::ShiftRight<kShift>(a), low);
    a = first;
  }

  template <class V>
  static HWY_INLINE void store(V a, V b, V c, V e, uint32_t* quads) {
#if HWY_TARGET == HWY_SCALAR
    const uint64_t words[4] = {hn::GetLane(a), hn::GetLane(b), hn::GetLane(c), hn::GetLane(e)};
    for (size_t i = 0; i < 8; ++i) quads[i] = static_cast<uint32_t>(words[i % 4] >> (i / 4 * 32));
#else
    const hn::Repartition<uint32_t, BitPlanes> d32;
    hn::StoreInterleaved4(hn::BitCast(d32, a), hn::BitCast(d32, b), hn::BitCast(d32, c), hn::BitCast(d32, e), d32,
                          quads);
#endif
  }

  HWY_ALIGN uint32_t quads_[kMostOfTile / 8];
};

// The mask of lanes in which that bit is set.
template <class D, class V>
HWY_INLINE hn::Mask<D> has_bit(D d, V numbers, size_t bit) {
  const hn::RebindToUnsigned<D> du;
  return hn::RebindMask(d, hn::TestBit(numbers, hn::Set(du, uint32_t{1} << bit)));
}

// The nibbles of a tile and the block's sums that they choose, for some payloads.
struct BitSums {
  Nibbles nibbles;
  HWY_ALIGN float of_block[kBitSums];

  template <size_t kCount, class Payloads>
  HWY_INLINE void fill(const Payloads& payloads, size_t first, size_t block) {
    const hn::CappedTag<float, kBitSums> d;
    const hn::RebindToUnsigned<decltype(d)> du;
    for (size_t lane = 0; lane < kBitSums; lane += hn::Lanes(d)) {
      const auto all = hn::Iota(du, static_cast<uint32_t>(lane));
      hn::Store(payloads.template sum<kCount>(d, first, block, all), d, of_block + lane);
    }
  }
};

#if HWY_TARGET != HWY_SCALAR

// Looks up sums of a block by the low bits of lanes. A vector holds all of the sums, or half of them.
template <class D, class V>
HWY_INLINE hn::Vec<D> look_up(D d, const float* bit_sums, V nibbles) {
  constexpr size_t kLanes = hn::MaxLanes(D());
  const hn::RebindToUnsigned<D> du;
  // The lookup uses only the low bits of an index. In debug builds Highway checks that no other bits are set.
  const auto places = HWY_IS_DEBUG_BUILD ? hn::And(nibbles, hn::Set(du, uint32_t{kLanes - 1})) : nibbles;
  const auto indices = hn::IndicesFromVec(d, places);
  const auto sums = hn::TableLookupLanes(hn::Load(d, bit_sums), indices);
  if constexpr (kLanes == kBitSums) return sums;
  const auto is_upper = has_bit(d, nibbles, kBitsTogether - 1);
  return hn::IfThenElse(is_upper, hn::TableLookupLanes(hn::Load(d, bit_sums + kBitSums - kLanes), indices), sums);
}

// Adds the sums of the vector that is kFirst elements after the one at `begin`.
template <size_t kTables, size_t kFirst, class D>
HWY_INLINE void add_bit_sums(D d, const BitSums* all, size_t begin, const float* old, const Place& to) {
  const hn::RebindToUnsigned<D> du;
  auto sum = look_up(d, all[0].of_block, all[0].nibbles.template at<kFirst>(du, begin));
  if (old != nullptr) sum = hn::Add(hn::LoadU(d, old + begin + kFirst), sum);
  for (size_t t = 1; t < kTables; ++t) {
    sum = hn::Add(sum, look_up(d, all[t].of_block, all[t].nibbles.template at<kFirst>(du, begin)));
  }
  to.store(sum, d, begin + kFirst);
}

#endif

// to[i] = (old == nullptr ? 0 : old[i]) + the sums that the nibbles of i choose in each of `all`, added one after the
// other, for the elements [begin, end) of a tile.
template <size_t kTables>
HWY_INLINE void add_bit_sums(const BitSums* all, size_t begin, size_t end, const float* old, const Place to) {
  const auto one = [&](size_t i) HWY_ATTR {
    float sum = all[0].of_block[all[0].nibbles.at(i) % kBitSums];
    if (old != nullptr) sum = old[i] + sum;
    for (size_t t = 1; t < kTables; ++t) sum += all[t].of_block[all[t].nibbles.at(i) % kBitSums];
    to.to[i] = sum;
  };
#if HWY_TARGET != HWY_SCALAR
  const hn::CappedTag<float, kBitSums> d;
  constexpr size_t kLanes = hn::MaxLanes(decltype(d)());
  if constexpr (kLanes >= kBitSums / 2) {
    for (; begin < end && begin % 32 != 0; ++begin) one(begin);
    for (; begin + 32 <= end; begin += 32) {
      add_bit_sums<kTables, 0>(d, all, begin, old, to);
      add_bit_sums<kTables, kLanes>(d, all, begin, old, to);
      if constexpr (kLanes == kBitSums) continue;
      add_bit_sums<kTables, 16>(d, all, begin, old, to);
      add_bit_sums<kTables, 24>(d, all, begin, old, to);
    }
  }
#endif
  for (; begin < end; ++begin) one(begin);
}

// to = (old == nullptr ? 0 : old) + the values of kCount payloads of a tile, [begin, end) of a run of blocks. The
// values of each kEach payloads are added up first. Payloads has two functions for kSome payloads from `first` on.
// - The bit of all elements, as a vector of BitPlanes that begins at that word, is plane<kSome>(first, bit, word).
// - The sum that nibbles choose in a block is sum<kSome>(d, first, block, nibbles).
template <size_t kEach, size_t kCount, class Payloads>
HWY_INLINE void add_by_bits(const Payloads& payloads, size_t block_size, size_t begin, size_t end, const float* old,
                            const Place& to) {
  constexpr size_t kTables = (kCount + kEach - 1) / kEach;
  BitSums all[kTables];
  // Calls body(table, first, kSome) for each table, with kSome as an integral constant.
  const auto for_tables = [&]<size_t... t>(const auto& body, std::index_sequence<t...>) HWY_ATTR {
    (body(all[t], t * kEach, std::integral_constant<size_t, std::min(kEach, kCount - t * kEach)>()), ...);
  };
  constexpr auto kAll = std::make_index_sequence<kTables>();
  for_tables([&](BitSums& table, size_t first, auto some)
                 HWY_ATTR { table.nibbles.template fill<some()>(payloads, first, end - begin); },
             kAll);
  // Inlined: compilers tend to make it a function of its own, which takes a tenth longer.
  const auto add_block = [&](size_t block, size_t from, size_t stop) HWY_ATTR __attribute__((always_inline)) {
    for_tables([&](BitSums& table, size_t first, auto some)
                   HWY_ATTR { table.template fill<some()>(payloads, first, block); },
               kAll);
    add_bit_sums<kTables>(all, from - begin, stop - begin, old, to);
  };
  for_parts(begin, end, block_size, add_block);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradtune::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
