// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Random bits of elements, the same as on the host: random-inl.h says which bits an element has, engine/core/philox.h
// how they are made.
#pragma once

#include "engine/compress/cuda/device.cuh"
#include "engine/compress/shared.h"
#include "engine/core/philox.h"

namespace gradtune::compress::cuda {

// With the keys of all rounds, so that no thread has to make them.
struct Philox {
  uint32_t keys[core::kPhiloxRounds][2];
  uint32_t step, rank, use, unused;
  int64_t first_element;
};

inline Philox philox_of(const Work& work) {
  Philox made{.keys = {},
              .step = work.random.step,
              .rank = work.random.rank,
              .use = work.random.use,
              .unused = 0,
              .first_element = work.first_element};
  auto key0 = static_cast<uint32_t>(work.random.seed), key1 = static_cast<uint32_t>(work.random.seed >> 32);
  for (auto& key : made.keys) {
    key[0] = key0;
    key[1] = key1;
    key0 += core::kPhiloxKeySteps[0];
    key1 += core::kPhiloxKeySteps[1];
  }
  return made;
}

struct Words {
  uint32_t at[4];
};

__device__ __forceinline__ Words philox(const Philox& of, Words x) {
#pragma unroll
  for (int round = 0; round < core::kPhiloxRounds; ++round) {
    const uint32_t high0 = __umulhi(0xd2511f53, x.at[0]), low0 = 0xd2511f53 * x.at[0];
    const uint32_t high1 = __umulhi(0xcd9e8d57, x.at[2]), low1 = 0xcd9e8d57 * x.at[2];
    x = {{high1 ^ x.at[1] ^ of.keys[round][0], low1, high0 ^ x.at[3] ^ of.keys[round][1], low0}};
  }
  return x;
}
static_assert(core::kPhiloxMultipliers[0] == 0xd2511f53 && core::kPhiloxMultipliers[1] == 0xcd9e8d57);

// The random words of an element of the whole gradient that are equal on all ranks (shared_random of shared.h).
__device__ __forceinline__ Words shared_words(const Philox& of, int64_t element) {
  const auto position = static_cast<uint64_t>(element);
  return philox(
      of, {{static_cast<uint32_t>(position), of.step, static_cast<uint32_t>(position >> 32), of.use | kSharedUse}});
}

// 16 bits for each of four elements from `element` on, of the whole gradient.
struct Bits {
  uint32_t at[4];
};

// The words of the block that element has its bits from: two, of four elements.
__device__ __forceinline__ uint2 words_of(const Philox& of, uint64_t element) {
  const auto in_group = static_cast<uint32_t>(element % 128);
  const auto block = static_cast<uint32_t>(element / 128 * 8) + in_group % 32 / 4;
  const Words all = philox(of, {{block, of.step, of.rank, of.use}});
  const bool upper = in_group / 32 % 2 == 1;
  uint2 two = upper ? make_uint2(all.at[2], all.at[3]) : make_uint2(all.at[0], all.at[1]);
  if (in_group >= 64) {  // bytes of each half exchanged
    two.x = __byte_perm(two.x, 0, 0x2301);
    two.y = __byte_perm(two.y, 0, 0x2301);
  }
  return two;
}

__device__ __forceinline__ Bits random_bits(const Philox& of, int64_t i) {
  const auto element = static_cast<uint64_t>(of.first_element + i);
  uint2 words = words_of(of, element);
  if (element % 4 == 0) return {{words.x & 0xffff, words.x >> 16, words.y & 0xffff, words.y >> 16}};
  Bits bits;
  for (uint64_t j = 0; j < 4; ++j) {
    if ((element + j) % 4 == 0) words = words_of(of, element + j);
    const uint32_t word = (element + j) % 4 < 2 ? words.x : words.y;
    bits.at[j] = (element + j) % 2 == 0 ? word & 0xffff : word >> 16;
  }
  return bits;
}

}  // namespace gradtune::compress::cuda
