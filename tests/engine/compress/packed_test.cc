// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests `packed` and `bf16packed`: every number comes back bit for bit, on every target; the stated number of used
// bytes is enough; exponents that lie close together take little space.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "engine/core/rng.h"
#include "tests/suites/compressor_harness.h"

namespace gradtune::suites {
namespace {

int64_t used_bytes(const compress::Compressor& compressor, const Payload& payload) {
  return compressor.traits().used_bytes(std::as_bytes(std::span(payload)));
}

// The bits of arbitrary fp32 numbers, with every exponent, zeros and subnormal numbers. `spread` says how close
// together the exponents in a group lie.
std::vector<float> any_numbers(size_t n, int spread, uint64_t seed) {
  core::Rng rng(seed);
  std::vector<float> values(n);
  uint32_t base = 0;
  for (size_t i = 0; i < n; ++i) {
    if (i % 64 == 0) base = static_cast<uint32_t>(rng.next() % 255);
    const auto exponent =
        std::min<uint32_t>(base + static_cast<uint32_t>(rng.next() % static_cast<uint64_t>(spread)), 254);
    const auto bits = static_cast<uint32_t>(rng.next());
    values[i] = std::bit_cast<float>((bits & 0x807fffff) | (bits % 9 == 0 ? 0 : exponent << 23));
    if (bits % 31 == 0) values[i] = bits % 2 == 0 ? 0.0F : -0.0F;
  }
  return values;
}

TEST(Packed, EveryNumberComesBackBitForBit) {
  const auto compressor = make("packed");
  for (const int64_t target : simd_targets()) {
    const ScopedTarget use(target);
    for (const int spread : {1, 2, 3, 9, 40, 255}) {
      for (const size_t n : {1, 63, 64, 65, 8191, 8193, 50000}) {
        const std::vector<float> values = any_numbers(n, spread, n);
        const Encoded encoded = encode(*compressor, {.gradient = values});
        EXPECT_TRUE(encoded.finite);
        const std::vector<float> decoded = decode(*compressor, {.payloads = {encoded.payload}, .n = n}).value();
        EXPECT_TRUE(same_bytes(decoded, values)) << target_name(target) << ", " << spread << ", " << n;
      }
    }
  }
}

TEST(Packed, ItsSixteenBitsAreThoseOfBf16) {
  const auto packed = make("bf16packed"), plain = make("bf16");
  for (const int spread : {1, 5, 255}) {
    const std::vector<float> values = any_numbers(30011, spread, 3);
    const auto through = [&](const compress::Compressor& compressor) {
      return decode(compressor, {.payloads = {encode(compressor, {.gradient = values}).payload}, .n = values.size()})
          .value();
    };
    EXPECT_TRUE(same_bytes(through(*packed), through(*plain))) << spread;
  }
}

TEST(Packed, WhatIsBehindTheUsedBytesDoesNotMatter) {
  for (const char* spec : {"packed", "bf16packed"}) {
    const auto compressor = make(spec);
    for (const size_t n : {0, 1, 100, 8192, 20000}) {
      const Payload payload = encode(*compressor, {.gradient = make_data(Data::layered, n)}).payload;
      Payload arrived = payload;
      std::fill(arrived.begin() + used_bytes(*compressor, payload), arrived.end(), 0xa5);
      const std::vector<float> all = decode(*compressor, {.payloads = {payload}, .n = n}).value();
      EXPECT_TRUE(same_bytes(decode(*compressor, {.payloads = {arrived}, .n = n}).value(), all)) << spec << ", " << n;
    }
  }
}

// Exponents of normally distributed numbers: 64 of them span about 8 powers of two.
TEST(Packed, NumbersOfLikeMagnitudeTakeFewerBits) {
  constexpr size_t n = 1 << 20;
  const auto bits_of = [](const char* spec, const std::vector<float>& values) {
    const auto compressor = make(spec);
    const double bytes =
        static_cast<double>(used_bytes(*compressor, encode(*compressor, {.gradient = values}).payload));
    return 8 * bytes / static_cast<double>(values.size());
  };
  const std::vector<float> normal = make_data(Data::normal, n);
  EXPECT_LE(bits_of("packed", normal), 28.5);
  EXPECT_LE(bits_of("bf16packed", normal), 12.5);
  const std::vector<float> alike = any_numbers(n, 1, 1);  // zeros, too, take a code
  EXPECT_LE(bits_of("packed", alike), 24 + 1 + 0.3);
  const std::vector<float> zeros(n);
  EXPECT_LE(bits_of("packed", zeros), 0.3);
  const std::vector<float> wild = any_numbers(n, 255, 1);
  EXPECT_LE(bits_of("packed", wild), 32.3) << "never much more than the numbers themselves";
  EXPECT_LE(bits_of("bf16packed", wild), 16.3);
}

TEST(Packed, ALengthThatIsNoLengthIsRejectedAndNeverBeyondThePayload) {
  const auto compressor = make("packed");
  Payload payload = encode(*compressor, {.gradient = make_data(Data::layered, 20000)}).payload;
  for (const uint32_t stated : {0U, 1U, 100U, 0xffffffffU}) {
    std::memcpy(payload.data() + 12, &stated, sizeof stated);
    EXPECT_GE(used_bytes(*compressor, payload), 16);
    EXPECT_LE(used_bytes(*compressor, payload), static_cast<int64_t>(payload.size()));
    const auto result = decode(*compressor, {.payloads = {payload}, .n = 20000});
    ASSERT_FALSE(result.ok());
    EXPECT_THAT(result.error().message, testing::HasSubstr(" is "));
  }
}

}  // namespace
}  // namespace gradtune::suites
