// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Random bits of elements, by their position in the gradient. Each element has 16 uniform bits, of which 8 are drawn
// for it: two elements share the same two bytes in opposite order. The rounding of an element therefore depends on
// that of its pair only if the lower byte decides: in one case of 256. One block of Philox (engine/core/philox.h)
// serves 16 elements.
//
// Element e belongs to the group e / 128, which is made from the 8 blocks with counters {group * 8 + b, step, rank,
// use}, b = 0 ... 7. The first 32 elements of a group take words 0 and 1 of the blocks, the next 32 take words 2 and
// 3. With i = e % 32, the element takes block i / 4; i % 4 chooses the low half of the first word, its high half, and
// so on. So vectors of 64-bit lanes, with one block in each lane, are stored as they are computed. The last 64
// elements have the same bits with the bytes exchanged.
#if defined(GRADTUNE_ENGINE_COMPRESS_RANDOM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADTUNE_ENGINE_COMPRESS_RANDOM_INL_H_
#undef GRADTUNE_ENGINE_COMPRESS_RANDOM_INL_H_
#else
#define GRADTUNE_ENGINE_COMPRESS_RANDOM_INL_H_
#endif

#include "engine/compress/simd/simd-inl.h"
#include "engine/core/philox.h"

HWY_BEFORE_NAMESPACE();
namespace gradtune::compress::HWY_NAMESPACE {

// The keys of all rounds.
struct PhiloxKeys {
  explicit PhiloxKeys(uint64_t seed) {
    auto key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < core::kPhiloxRounds; ++round) {
      of[0][round] = key0;
      of[1][round] = key1;
      key0 += core::kPhiloxKeySteps[0];
      key1 += core::kPhiloxKeySteps[1];
    }
  }
  uint64_t of[2][core::kPhiloxRounds];
};

#if HWY_TARGET != HWY_SCALAR

template <class D, class V = hn::Vec<D>>
HWY_INLINE V high_halves(D d, V v) {
  return hn::BitCast(d, hn::DupOdd(hn::BitCast(hn::RepartitionToNarrow<D>(), v)));
}

// One round of the blocks in 64-bit lanes. Only the low half of each word counts; the high half is not cleared. High
// halves of products are moved down by a shuffle, since some processors shift on the same port as they multiply.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void philox_round(D d, const PhiloxKeys& keys, int round, V& x0, V& x1, V& x2, V& x3) {
  const hn::RepartitionToNarrow<D> d32;
  const V first = hn::MulEven(hn::BitCast(d32, x0), hn::Set(d32, core::kPhiloxMultipliers[0]));
  const V second = hn::MulEven(hn::BitCast(d32, x2), hn::Set(d32, core::kPhiloxMultipliers[1]));
  x0 = hn::Xor3(high_halves(d, second), x1, hn::Set(d, keys.of[0][round]));
  x1 = second;
  x2 = hn::Xor3(high_halves(d, first), x3, hn::Set(d, keys.of[1][round]));
  x3 = first;
}

// Combines two words to one of 64 bits.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V philox_pair(D d, V low, V high) {
  return hn::Or(hn::And(low, hn::Set(d, 0xffffffff)), hn::ShiftLeft<32>(high));
}

#endif

// One of the two integers next to x + from, chosen by 16 random bits so that the mean is x + from. Magnitudes are
// below 128. The sum has 15 places after the binary point, and the random bits are added there, so an integer stays
// the same.
template <class D, class V, class R>
HWY_INLINE hn::Vec<hn::RebindToSigned<D>> round_at_random(D d, V x, R random, float from = 0) {
  constexpr int kPlaces = 15;
  constexpr int32_t kBitsOf384 = 0x43c00000;
  const hn::RebindToSigned<D> di;
  const auto fixed = hn::BitCast(di, hn::Add(x, hn::Set(d, 384 + from)));
  const auto sum = hn::Add(fixed, hn::And(random, hn::Set(di, (1 << kPlaces) - 1)));
  return hn::Sub(hn::ShiftRight<kPlaces>(sum), hn::Set(di, kBitsOf384 >> kPlaces));
}

// The same for x from 0 to 127; only the lowest byte of the result is the integer. The sum has 16 places after the
// point.
template <class D, class V, class R>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> round_to_byte_at_random(D d, V x, R random) {
  const hn::RebindToUnsigned<D> du;
  return hn::ShiftRight<16>(hn::Add(hn::BitCast(du, hn::Add(x, hn::Set(d, 128))), random));
}

template <size_t kMost = kTile>
class RandomTile {
 public:
  explicit RandomTile(const Random& random) : random_(random), keys_(random.seed) {}

  // The bits of elements [first, first + count), count <= kMost.
  HWY_INLINE const uint16_t* bits(uint64_t first, size_t count) {
    const size_t skipped = first % kGroup;
    fill(first / kGroup, (skipped + count + kGroup - 1) / kGroup);
    return tile_ + skipped;
  }

 private:
  static constexpr size_t kGroup = 128, kPair = kGroup / 2;
  static constexpr size_t kBlocks = 8;

#if HWY_TARGET == HWY_SCALAR

  HWY_INLINE void fill(uint64_t group, size_t groups) {
    uint16_t* to = tile_;
    for (; groups > 0; --groups, ++group, to += kGroup - kPair / 2) {
      for (size_t b = 0; b < kBlocks; ++b, to += 4) {
        const auto words =
            core::philox4x32({static_cast<uint32_t>(group * kBlocks + b), random_.step, random_.rank, random_.use},
                             {static_cast<uint32_t>(random_.seed), static_cast<uint32_t>(random_.seed >> 32)});
        std::memcpy(to, words.data(), 8);
        std::memcpy(to + kPair / 2, words.data() + 2, 8);
      }
      for (size_t i = 0; i < kPair; ++i)
        to[kPair / 2 + i] = static_cast<uint16_t>(to[i - kPair / 2] << 8 | to[i - kPair / 2] >> 8);
    }
  }

#else

  using D = hn::CappedTag<uint64_t, kBlocks>;
  using V = hn::Vec<D>;

  // The blocks of all groups are numbered consecutively, so all vectors of them are alike. The loop computes two
  // vectors at once, since a round waits for the products of the round before.
  HWY_INLINE void fill(uint64_t group, size_t groups) {
    const D d;
    const size_t lanes = hn::Lanes(d),
                 blocks = groups * kBlocks;  // a multiple of 2 * lanes, but for vectors of 8 lanes
    const V step = hn::Set(d, uint64_t{random_.step}), rank = hn::Set(d, uint64_t{random_.rank});
    const V use = hn::Set(d, uint64_t{random_.use});
    for (size_t block = 0; block < blocks; block += 2 * lanes) {
      V a0 = hn::Add(hn::Iota(d, uint64_t{0}), hn::Set(d, group * kBlocks + block)),
        b0 = hn::Add(a0, hn::Set(d, lanes));
      V a1 = step, a2 = rank, a3 = use, b1 = step, b2 = rank, b3 = use;
      for (int round = 0; round < core::kPhiloxRounds; ++round) {
        philox_round(d, keys_, round, a0, a1, a2, a3);
        philox_round(d, keys_, round, b0, b1, b2, b3);
      }
      store(a0, a1, a2, a3, block);
      store(b0, b1, b2, b3, block + lanes);  // perhaps after the last group, where there is room
    }
  }

  template <class D16, class V16>
  static HWY_INLINE V16 exchange_bytes(D16 /*d*/, V16 v) {
    return hn::Or(hn::ShiftLeft<8>(v), hn::ShiftRight<8>(v));
  }

  // Stores one block from each lane; all blocks are of one group.
  HWY_INLINE void store(V x0, V x1, V x2, V x3, size_t block) {
    const D d;
    const hn::Repartition<uint16_t, D> d16;
    uint16_t* const to = tile_ + block / kBlocks * kGroup + block % kBlocks * 4;
    const auto first = hn::BitCast(d16, philox_pair(d, x0, x1)), second = hn::BitCast(d16, philox_pair(d, x2, x3));
    hn::StoreU(first, d16, to);
    hn::StoreU(second, d16, to + kPair / 2);
    hn::StoreU(exchange_bytes(d16, first), d16, to + kPair);
    hn::StoreU(exchange_bytes(d16, second), d16, to + kPair + kPair / 2);
  }

#endif

  const Random random_;
  const PhiloxKeys keys_;
  HWY_ALIGN uint16_t tile_[kMost + 2 * kGroup];
};

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradtune::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
