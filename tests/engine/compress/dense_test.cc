// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests `none`, `fp16` and `bf16`: every code and every kind of rounding, bit for bit, on every target.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "engine/core/rng.h"
#include "tests/suites/compressor_harness.h"
#include "tests/suites/reference_compressors.h"

namespace gradtune::suites {
namespace {

std::vector<uint16_t> codes_of(const Payload& payload) {
  std::vector<uint16_t> codes(payload.size() / 2);
  std::memcpy(codes.data(), payload.data(), payload.size());
  return codes;
}

Payload payload_of(const std::vector<uint16_t>& codes) {
  Payload payload(codes.size() * 2);
  std::memcpy(payload.data(), codes.data(), payload.size());
  return payload;
}

std::vector<uint16_t> all_codes() {
  std::vector<uint16_t> codes(65536);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint16_t>(i);
  return codes;
}

double value_of_bf16(uint16_t code) { return std::bit_cast<float>(uint32_t{code} << 16); }

struct Format {
  const char* spec;
  double (*value_of)(uint16_t code);
  double (*round)(double value);
  double largest;  // finite
};

class SixteenBits : public testing::TestWithParam<Format> {};

INSTANTIATE_TEST_SUITE_P(Formats, SixteenBits,
                         testing::Values(Format{"fp16", value_of_fp16, round_to_fp16, 65504},
                                         Format{"bf16", value_of_bf16, round_to_bf16, 0x1.fep127}),
                         [](const auto& format) { return format.param.spec; });

TEST_P(SixteenBits, EveryCodeIsDecodedAndEncodedAgain) {
  const Format& format = GetParam();
  const auto compressor = make(format.spec);
  for (int64_t target : simd_targets()) {
    const ScopedTarget use(target);
    const std::vector<float> values = decode(*compressor, {.payloads = {payload_of(all_codes())}, .n = 65536}).value();
    const std::vector<uint16_t> again = codes_of(encode(*compressor, {.gradient = values}).payload);
    size_t wrong_values = 0, wrong_codes = 0;
    for (size_t code = 0; code < 65536; ++code) {
      const double expected = format.value_of(static_cast<uint16_t>(code));
      if (std::isnan(expected)) {
        wrong_values += !std::isnan(values[code]);
        wrong_codes += !std::isnan(format.value_of(again[code]));
      } else {
        wrong_values += values[code] != expected || std::signbit(values[code]) != (code >> 15 != 0);
        wrong_codes += again[code] != code;
      }
    }
    EXPECT_EQ(wrong_values, 0U) << target_name(target);
    EXPECT_EQ(wrong_codes, 0U) << target_name(target);
  }
}

// Takes the middle between every two neighbours, and the closest fp32 numbers on both sides of it, with both signs.
TEST_P(SixteenBits, RoundingIsToNearestEven) {
  const Format& format = GetParam();
  const auto compressor = make(format.spec);
  std::vector<float> values;
  for (uint16_t code = 0; std::isfinite(format.value_of(code)); ++code) {
    const double low = format.value_of(code);
    const double high = low == format.largest ? low + (low - format.value_of(code - 1)) : format.value_of(code + 1);
    const auto middle = static_cast<float>((low + high) / 2);  // exact: fp32 has more bits
    for (float value : {middle, std::nextafter(middle, 0.0F), std::nextafter(middle, HUGE_VALF)}) {
      values.push_back(value);
      values.push_back(-value);
    }
  }
  core::Rng rng(1);
  for (int i = 0; i < 300000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(rng.next()));
    if (std::isfinite(value)) values.push_back(value);
  }
  for (int64_t target : simd_targets()) {
    const ScopedTarget use(target);
    const std::vector<uint16_t> codes = codes_of(encode(*compressor, {.gradient = values}).payload);
    size_t wrong = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const double got = format.value_of(codes[i]);
      wrong += got != format.round(values[i]) || std::signbit(got) != std::signbit(values[i]);
    }
    EXPECT_EQ(wrong, 0U) << target_name(target);
  }
}

TEST_P(SixteenBits, OverflowIsNotFinite) {
  const Format& format = GetParam();
  const auto compressor = make(format.spec);
  const double place =
      format.largest - format.value_of(static_cast<uint16_t>(format.largest == 65504 ? 0x7bfe : 0x7f7e));
  const auto halfway = static_cast<float>(format.largest + place / 2);
  for (float sign : {1.0F, -1.0F}) {
    EXPECT_TRUE(encode(*compressor, {.gradient = {1, sign * std::nextafter(halfway, 0.0F), 1}}).finite);
    EXPECT_FALSE(encode(*compressor, {.gradient = {1, sign * halfway, 1}}).finite);
  }
}

// Sums as many values as collectives do, one after the other, and rounds each sum.
TEST_P(SixteenBits, ASumThatMayOverflowIsNotFinite) {
  const Format& format = GetParam();
  const auto compressor = make(format.spec);
  for (const int summed : {2, 3, 7, 8, 64}) {
    const double limit = format.largest / summed;
    for (int i = -100; i <= 100; ++i) {
      const auto value = static_cast<float>(limit * (1 + i * 0.002));
      double sum = 0;
      for (int rank = 0; rank < summed; ++rank) sum = format.round(sum + format.round(value));
      const bool finite = encode(*compressor, {.gradient = {1, -value}, .summed = summed}).finite;
      EXPECT_TRUE(std::isfinite(sum) || !finite) << value << " of " << summed << " ranks";
    }
    const double share = std::string(format.spec) == "fp16" ? 0.9 : 0.7;  // roundings add up
    EXPECT_TRUE(encode(*compressor, {.gradient = {static_cast<float>(share * limit)}, .summed = summed}).finite);
  }
}

TEST(None, IsTheGradientItself) {
  const auto compressor = make("none");
  const std::vector<float> gradient = make_data(Data::layered, 10007);
  const Encoded encoded = encode(*compressor, {.gradient = gradient});
  EXPECT_EQ(std::memcmp(encoded.payload.data(), gradient.data(), gradient.size() * sizeof(float)), 0);
  EXPECT_TRUE(same_bytes(decode(*compressor, {.payloads = {encoded.payload}, .n = gradient.size()}).value(), gradient));
  EXPECT_EQ(encoded.residual_next, std::vector<float>(gradient.size()));
}

TEST(None, SumTypesAreTheWireTypes) {
  EXPECT_EQ(make("none")->summing().type, core::WireType::f32);
  EXPECT_EQ(make("bf16")->summing().type, core::WireType::bf16);
  EXPECT_EQ(make("fp16")->summing().type, core::WireType::f16);
}

}  // namespace
}  // namespace gradtune::suites
