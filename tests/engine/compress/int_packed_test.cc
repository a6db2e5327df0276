// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests Rice's code of small integers, bit by bit, and the compressors that send it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bitset>
#include <random>
#include <string>

#include "engine/compress/codes/rice_kernels.h"
#include "tests/suites/compressor_harness.h"

namespace gradtune::suites {
namespace {

using Integers = std::vector<int>;
using Stream = std::vector<std::byte>;

int largest_of(int bits) { return (1 << (bits - 1)) - 1; }

Stream packed(const Integers& integers, int bits) {
  std::vector<uint8_t> codes((integers.size() + 63) / 64 * 64);
  for (size_t i = 0; i < integers.size(); ++i) codes[i] = static_cast<uint8_t>(integers[i] + largest_of(bits));
  const auto most = static_cast<size_t>(compress::most_rice_bytes(static_cast<int64_t>(integers.size()), bits));
  Stream stream(most + 8, std::byte{0xaa});
  const size_t bytes = compress::pack_rice(codes.data(), integers.size(), bits, stream.data());
  EXPECT_EQ(bytes % 8, 0U);
  EXPECT_LE(bytes + 8, most);
  for (size_t i = most; i < stream.size(); ++i) EXPECT_EQ(stream[i], std::byte{0xaa}) << "written behind its memory";
  stream.resize(bytes);
  return stream;
}

// Nothing if the stream is not accepted.
std::optional<Integers> unpacked(Stream stream, size_t n, int bits) {
  const size_t bytes = stream.size();
  stream.resize(bytes + compress::kRiceSlack, std::byte{0x55});
  std::vector<uint8_t> codes((n + 63) / 64 * 64);
  const bool is_good = compress::unpack_rice({stream.data(), bytes}, n, bits, codes.data());
  Integers integers;
  for (size_t i = 0; i < n; ++i) {
    EXPECT_LE(codes[i], 2 * largest_of(bits)) << "no valid code";
    integers.push_back(codes[i] - largest_of(bits));
  }
  return is_good ? std::optional(integers) : std::nullopt;
}

// The definition, as text of '0' and '1', for one group.
std::string definition_of_group(const Integers& integers, int bits) {
  const auto magnitude = [](int integer) { return std::abs(integer); };
  std::string best;
  for (int k = 0; k <= bits - 2; ++k) {
    std::string low, unary, signs;
    for (int bit = 0; bit < k; ++bit) {
      for (int integer : integers) low += magnitude(integer) >> bit & 1 ? '1' : '0';
    }
    const int top = largest_of(bits) >> k;
    for (int j = 0; j < top; ++j) {
      for (int integer : integers) {
        const int quotient = magnitude(integer) >> k;
        if (quotient >= j) unary += quotient > j ? '1' : '0';
      }
    }
    for (int integer : integers) {
      if (integer != 0) signs += integer < 0 ? '1' : '0';
    }
    const std::string text = std::bitset<3>(static_cast<unsigned>(k)).to_string();
    const std::string all = std::string(text.rbegin(), text.rend()) + low + unary + signs;
    if (best.empty() || all.size() < best.size()) best = all;
  }
  const bool is_nothing = std::ranges::all_of(integers, [](int integer) { return integer == 0; });
  return is_nothing ? "111" : best;
}

// The same for a stream.
std::string definition(const Integers& integers, int bits) {
  std::string table, groups;
  for (size_t i = 0; i < integers.size(); i += 64) {
    if (i > 0 && i % 1024 == 0) {
      const std::string begin = std::bitset<16>(groups.size()).to_string();
      table += std::string(begin.rbegin(), begin.rend());
    }
    const size_t end = std::min(integers.size(), i + 64);
    groups += definition_of_group({&integers[i], integers.data() + end}, bits);
  }
  std::string all = table + groups;
  all.resize((all.size() + 63) / 64 * 64, '0');
  return all;
}

std::string text_of(const Stream& stream) {
  std::string text;
  for (const std::byte byte : stream) {
    for (int bit = 0; bit < 8; ++bit) text += (byte >> bit & std::byte{1}) != std::byte{0} ? '1' : '0';
  }
  return text;
}

Integers drawn(std::mt19937& random, size_t n, int bits, double spread) {
  if (spread == 0) return Integers(n);
  std::normal_distribution<double> normal(0, spread);
  Integers integers;
  for (size_t i = 0; i < n; ++i) {
    integers.push_back(std::clamp(static_cast<int>(std::lround(normal(random))), -largest_of(bits), largest_of(bits)));
  }
  return integers;
}

TEST(Rice, StreamsAreWhatTheirDefinitionSaysAndComeBack) {
  std::mt19937 random(7);
  for (const int bits : {3, 4}) {
    for (const double spread : {0.0, 0.1, 0.6, 2.0, 9.0, 60.0, 1000.0}) {
      for (const size_t n : {0, 1, 5, 63, 64, 65, 128, 200, 1000, 1024, 1025, 8192}) {
        const Integers integers = drawn(random, n, bits, spread);
        const Stream stream = packed(integers, bits);
        ASSERT_EQ(text_of(stream), definition(integers, bits)) << bits << " bits, spread " << spread << ", " << n;
        ASSERT_EQ(unpacked(stream, n, bits), integers) << bits << " bits, spread " << spread << ", " << n;
      }
    }
  }
}

// The worst case is all bits of every integer.
TEST(Rice, NoStreamIsLongerThanItsBound) {
  for (const int bits : {3, 4}) {
    for (int integer = 0; integer <= largest_of(bits); ++integer) {
      for (const size_t n : {64, 8192, 8191}) packed(Integers(n, integer), bits);
    }
  }
}

TEST(Rice, AnyBytesAreReadToTheEndOrRefused) {
  std::mt19937 random(8);
  for (int round = 0; round < 3000; ++round) {
    const int bits = 3 + round % 2;
    Stream stream(random() % 150 * 8);
    const unsigned share = random() % 4;  // share of set bits, for each half
    for (std::byte& byte : stream) {
      auto drawn = static_cast<uint8_t>(random());
      for (unsigned i = 0; i < share; ++i) drawn |= static_cast<uint8_t>(random());
      byte = std::byte{drawn};
    }
    unpacked(stream, random() % 2400, bits);
  }
}

TEST(Rice, AStreamThatIsTooLongOrTooShortIsRefused) {
  std::mt19937 random(9);
  const Integers integers = drawn(random, 700, 4, 2);
  Stream stream = packed(integers, 4);
  stream.resize(stream.size() + 8);
  EXPECT_EQ(unpacked(stream, 700, 4), std::nullopt);
  stream.resize(stream.size() - 16);
  EXPECT_EQ(unpacked(stream, 700, 4), std::nullopt);
  EXPECT_EQ(unpacked(packed(integers, 4), 640, 4), std::nullopt);
}

TEST(Rice, APartThatBeginsElsewhereIsRefused) {
  std::mt19937 random(10);
  const Integers integers = drawn(random, 4000, 4, 2);
  const Stream good = packed(integers, 4);
  for (size_t byte = 0; byte < 6; ++byte) {
    Stream stream = good;
    stream[byte] ^= std::byte{1};
    EXPECT_EQ(unpacked(stream, 4000, 4), std::nullopt) << byte;
  }
}

TEST(IntPacked, SaysWhatTheIntegersSay) {
  const std::pair<const char*, const char*> pairs[] = {
      {"int4packed:64", "int4:64"}, {"int4packed:256", "int4:256"}, {"int4packed:8192", "int4:8192"}};
  for (const auto& [packed_spec, plain_spec] : pairs) {
    for (const size_t n : {1, 64, 5000, 70001}) {
      const std::vector<float> gradient = make_data(Data::layered, n);
      const auto packed = make(packed_spec), plain = make(plain_spec);
      const Encoded from_packed = encode(*packed, {.gradient = gradient});
      const Encoded from_plain = encode(*plain, {.gradient = gradient});
      EXPECT_TRUE(same_bytes(from_packed.residual_next, from_plain.residual_next)) << packed_spec;
      EXPECT_TRUE(same_bytes(decode(*packed, {.payloads = {from_packed.payload}, .n = n}).value(),
                             decode(*plain, {.payloads = {from_plain.payload}, .n = n}).value()))
          << packed_spec;
    }
  }
}

// For normally distributed numbers in blocks of 256 codes have 3.28 and 2.11 bits; scales take 0.06 more, the choice of
// k 0.05, and the table 0.01.
TEST(IntPacked, TakesLittleMoreThanTheEntropyOfItsCodes) {
  const std::tuple<const char*, double> cases[] = {{"int4packed:256", 3.65}, {"int3packed:256", 2.55}};
  constexpr size_t kElements = 1 << 18;
  for (const auto& [spec, most_bits] : cases) {
    const auto compressor = make(spec);
    const Payload payload = encode(*compressor, {.gradient = make_data(Data::normal, kElements)}).payload;
    const auto used = static_cast<double>(compressor->traits().used_bytes(std::as_bytes(std::span(payload))));
    EXPECT_LE(used * 8 / kElements, most_bits) << spec;
    EXPECT_GE(used * 8 / kElements, most_bits - 0.3) << spec;
  }
}

TEST(IntPacked, StreamsThatDoNotEndWhereTheySayAreRejected) {
  const auto compressor = make("int4packed:64");
  constexpr size_t kElements = 3 * 8192;
  const Payload good = encode(*compressor, {.gradient = make_data(Data::normal, kElements)}).payload;
  const size_t ends_at = 16 + kElements / 64 * 2;
  for (const size_t run : {0, 1}) {
    for (const int change : {-1, 1, 1 << 20, -(1 << 30)}) {
      Payload payload = good;
      uint32_t end;
      std::memcpy(&end, payload.data() + ends_at + run * 4, sizeof end);
      end += static_cast<uint32_t>(change);
      std::memcpy(payload.data() + ends_at + run * 4, &end, sizeof end);
      const auto result = decode(*compressor, {.payloads = {good, payload}, .n = kElements});
      ASSERT_FALSE(result.ok());
      EXPECT_EQ(result.error().message, "payload 1 of 2: the end of a stream is not where it should be");
    }
  }
  Payload payload = good;
  payload[ends_at + 8] ^= 1;
  const auto result = decode(*compressor, {.payloads = {payload}, .n = kElements});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().message, "payload 0 of 1: the end of its streams is not where its header says");
}

}  // namespace
}  // namespace gradtune::suites
