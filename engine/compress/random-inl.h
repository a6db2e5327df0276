// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Random bits of elements, by their position in the gradient: 16 each, so that one block of Philox
// (engine/core/philox.h) serves 8 elements. Element e belongs to the group e / 64, which is made of the 8 blocks with
// counters {group * 8 + b, step, rank, use}, b = 0 ... 7. The first 32 elements of a group have words 0 and 1 of the
// blocks, the others words 2 and 3: with i = e % 32, block i / 4, and of its two words the low half of the first, its
// high half, and so on. So vectors of 64-bit lanes, one block in each, store what they computed as it is.
#if defined(GRADTUNE_ENGINE_COMPRESS_RANDOM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADTUNE_ENGINE_COMPRESS_RANDOM_INL_H_
#undef GRADTUNE_ENGINE_COMPRESS_RANDOM_INL_H_
#else
#define GRADTUNE_ENGINE_COMPRESS_RANDOM_INL_H_
#endif

#include "engine/compress/simd-inl.h"
#include "engine/core/philox.h"

HWY_BEFORE_NAMESPACE();
namespace gradtune::compress::HWY_NAMESPACE {

class RandomTile {
 public:
  explicit RandomTile(const Random& random) : random_(random) {}

  // The bits of elements [first, first + count), count <= kTile.
  HWY_INLINE const uint16_t* bits(uint64_t first, size_t count) {
    const size_t skipped = first % kGroup;
    for (size_t begin = 0; begin < skipped + count; begin += kGroup) fill((first + begin) / kGroup, tile_ + begin);
    return tile_ + skipped;
  }

 private:
  static constexpr size_t kGroup = 64;
  static constexpr size_t kBlocks = 8;

#if HWY_TARGET == HWY_SCALAR

  HWY_INLINE void fill(uint64_t group, uint16_t* to) const {
    for (size_t b = 0; b < kBlocks; ++b, to += 4) {
      const auto words =
          core::philox4x32({static_cast<uint32_t>(group * kBlocks + b), random_.step, random_.rank, random_.use},
                           {static_cast<uint32_t>(random_.seed), static_cast<uint32_t>(random_.seed >> 32)});
      std::memcpy(to, words.data(), 8);
      std::memcpy(to + kGroup / 2, words.data() + 2, 8);
    }
  }

#else

  HWY_INLINE void fill(uint64_t group, uint16_t* to) const {
    const hn::CappedTag<uint64_t, kBlocks> d;
    const hn::RepartitionToNarrow<decltype(d)> d32;
    const hn::Repartition<uint16_t, decltype(d)> d16;
    const auto low_half = hn::Set(d, 0xffffffff);
    const auto multiply = [d32](auto word, uint32_t factor)
                              HWY_ATTR { return hn::MulEven(hn::BitCast(d32, word), hn::Set(d32, factor)); };
    for (size_t lane = 0; lane < kBlocks; lane += hn::Lanes(d)) {
      // Of each word only the low half counts; what is above is not cleared until the end.
      auto x0 = hn::Add(hn::Iota(d, static_cast<uint64_t>(lane)), hn::Set(d, group * kBlocks));
      auto x1 = hn::Set(d, uint64_t{random_.step}), x2 = hn::Set(d, uint64_t{random_.rank});
      auto x3 = hn::Set(d, uint64_t{random_.use});
      auto key0 = static_cast<uint32_t>(random_.seed), key1 = static_cast<uint32_t>(random_.seed >> 32);
      for (int round = 0; round < core::kPhiloxRounds; ++round) {
        const auto first = multiply(x0, core::kPhiloxMultipliers[0]);
        const auto second = multiply(x2, core::kPhiloxMultipliers[1]);
        x0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(second), x1), hn::Set(d, uint64_t{key0}));
        x1 = second;
        x2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(first), x3), hn::Set(d, uint64_t{key1}));
        x3 = first;
        key0 += core::kPhiloxKeySteps[0];
        key1 += core::kPhiloxKeySteps[1];
      }
      const auto front = hn::Or(hn::And(x0, low_half), hn::ShiftLeft<32>(x1));
      const auto back = hn::Or(hn::And(x2, low_half), hn::ShiftLeft<32>(x3));
      hn::StoreU(hn::BitCast(d16, front), d16, to + lane * 4);
      hn::StoreU(hn::BitCast(d16, back), d16, to + kGroup / 2 + lane * 4);
    }
  }

#endif

  const Random random_;
  HWY_ALIGN uint16_t tile_[kTile + kGroup];
};

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace gradtune::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
