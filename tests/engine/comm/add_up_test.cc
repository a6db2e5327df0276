// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/comm/add_up.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/core/float16.h"

namespace gradtune::comm {
namespace {

using core::Reduction;
using core::WireType;

template <typename T>
std::vector<T> added_up(WireType type, Reduction reduction, const std::vector<std::vector<T>>& ranks) {
  std::vector<const std::byte*> inputs;
  for (const auto& values : ranks) inputs.push_back(reinterpret_cast<const std::byte*>(values.data()));
  std::vector<T> out(ranks[0].size());
  const std::vector<std::byte*> targets{reinterpret_cast<std::byte*>(out.data())};
  add_up(type, reduction, inputs, targets, static_cast<int64_t>(out.size()));
  return out;
}

bool is_nan_f16(uint16_t bits) { return (bits & 0x7fff) > 0x7c00; }

// All values survive the conversion to fp32 and back.
TEST(AddUp, AnyFloat16IsItself) {
  std::vector<uint16_t> all;
  for (uint32_t bits = 0; bits <= UINT16_MAX; ++bits) all.push_back(static_cast<uint16_t>(bits));
  const auto out = added_up<uint16_t>(WireType::f16, Reduction::max, {all});
  for (uint32_t bits = 0; bits <= UINT16_MAX; ++bits) {
    if (is_nan_f16(static_cast<uint16_t>(bits))) {
      EXPECT_TRUE(is_nan_f16(out[bits])) << bits;
    } else {
      EXPECT_EQ(out[bits], bits);
    }
  }
}

// Sums of numbers of very different size need every kind of rounding: to even, to a subnormal, to infinity.
TEST(AddUp, SumsOfFloat16AreRoundedAsTheirMeaningSays) {
  std::vector<uint16_t> ones, others;
  for (uint32_t one = 0; one <= UINT16_MAX; one += 97) {
    for (uint32_t other = 13; other <= UINT16_MAX; other += 331) {
      ones.push_back(static_cast<uint16_t>(one));
      others.push_back(static_cast<uint16_t>(other));
    }
  }
  for (const uint16_t one : {0x7bff, 0xfbff, 0x0001, 0x03ff, 0x0400, 0x7c00, 0xfc00}) {
    for (const uint16_t other : {0x7bff, 0x4c00, 0x4bff, 0x0001, 0x8001, 0x7c00, 0xfc00, 0x8400}) {
      ones.push_back(one);
      others.push_back(other);
    }
  }
  const auto out = added_up<uint16_t>(WireType::f16, Reduction::sum, {ones, others});
  for (size_t i = 0; i < out.size(); ++i) {
    const uint16_t expected = core::narrow_f16(core::widen_f16(ones[i]) + core::widen_f16(others[i]));
    if (is_nan_f16(expected)) {
      EXPECT_TRUE(is_nan_f16(out[i])) << ones[i] << " + " << others[i];
    } else {
      ASSERT_EQ(out[i], expected) << ones[i] << " + " << others[i];
    }
  }
}

TEST(AddUp, EveryTypeInTheOrderOfRanks) {
  EXPECT_EQ(added_up<float>(WireType::f32, Reduction::sum, {{1e8F}, {1}, {-1e8F}}), std::vector{0.0F});
  EXPECT_EQ(added_up<float>(WireType::f32, Reduction::sum, {{1e8F}, {-1e8F}, {1}}), std::vector{1.0F});
  EXPECT_EQ(added_up<double>(WireType::f64, Reduction::sum, {{1e17}, {1}, {-1e17}}), std::vector{0.0});
  EXPECT_EQ(added_up<uint8_t>(WireType::u8, Reduction::max, {{3, 250}, {200, 7}}), (std::vector<uint8_t>{200, 250}));
  // 256 + 1 + 1: rounded once, 258 is a bfloat16; rounded twice it stays 256.
  const std::vector<std::vector<uint16_t>> parts{
      {core::narrow_bf16(256)}, {core::narrow_bf16(1)}, {core::narrow_bf16(1)}};
  EXPECT_EQ(added_up<uint16_t>(WireType::bf16, Reduction::sum, parts), std::vector{core::narrow_bf16(258)});
}

// The input is longer than one chunk of the sum, and is also the target.
TEST(AddUp, AnyLengthAndInPlace) {
  for (const size_t count : {size_t{0}, size_t{1}, size_t{4095}, size_t{4097}, size_t{10000}}) {
    std::vector<float> first(count), second(count);
    for (size_t i = 0; i < count; ++i) {
      first[i] = static_cast<float>(i);
      second[i] = 1;
    }
    const std::vector<const std::byte*> inputs{reinterpret_cast<const std::byte*>(first.data()),
                                               reinterpret_cast<const std::byte*>(second.data())};
    const std::vector<std::byte*> targets{reinterpret_cast<std::byte*>(second.data())};
    add_up(WireType::f32, Reduction::sum, inputs, targets, static_cast<int64_t>(count));
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(second[i], static_cast<float>(i) + 1);
  }
}

}  // namespace
}  // namespace gradtune::comm
