// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/core/philox.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

namespace gradtune::core {
namespace {

using Block = std::array<uint32_t, 4>;

// The authors' known answers (kat_vectors of Random123).
TEST(Philox, IsPhilox4x327) {
  EXPECT_EQ(philox4x32({}, {}), (Block{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}));
  EXPECT_EQ(philox4x32({~0U, ~0U, ~0U, ~0U}, {~0U, ~0U}), (Block{0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a}));
}

// Each bit of counter and key changes about half of the 128 bits that come out.
TEST(Philox, EveryBitOfCounterAndKeyMatters) {
  for (int bit = 0; bit < 192; ++bit) {
    int changed = 0;
    for (uint32_t i = 0; i < 100; ++i) {
      Block counter{i, 1, 2, 3};
      std::array<uint32_t, 2> key{4, 5};
      const Block before = philox4x32(counter, key);
      (bit < 128 ? counter[static_cast<size_t>(bit / 32)] : key[static_cast<size_t>(bit / 32 - 4)]) ^= 1U << bit % 32;
      const Block after = philox4x32(counter, key);
      for (size_t word = 0; word < 4; ++word) changed += std::popcount(before[word] ^ after[word]);
    }
    EXPECT_NEAR(changed, 6400, 5 * std::sqrt(3200.0)) << bit;
  }
}

}  // namespace
}  // namespace gradtune::core
