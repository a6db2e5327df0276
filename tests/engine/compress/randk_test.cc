// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests Rand-k: the choice of elements to send, and sums of payloads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <numeric>

#include "tests/suites/compressor_harness.h"

namespace gradtune::suites {
namespace {

// The elements of n that are sent.
std::vector<size_t> sent_of(const compress::Compressor& compressor, size_t n, const compress::Random& random) {
  const EncodeCase job{.gradient = std::vector<float>(n, 1), .random = random, .first_element = 99};
  const std::vector<float> decoded = decode(compressor, decoding_of(job, {encode(compressor, job).payload})).value();
  std::vector<size_t> sent;
  for (size_t i = 0; i < n; ++i) {
    if (decoded[i] != 0) sent.push_back(i);
  }
  return sent;
}

TEST(RandK, SendsValuesAloneAndAsManyDistinctElements) {
  for (double density : {0.001, 0.01, 0.07, 0.3, 0.9, 1.0}) {
    const auto compressor = make("randk:" + std::to_string(density));
    for (size_t n : {1, 2, 10, 99, 100, 1000, 70001}) {
      const int64_t bytes = compressor->payload_bytes(static_cast<int64_t>(n));
      EXPECT_EQ(bytes, 4 * std::ceil(density * static_cast<double>(n) - 1e-6));
      EXPECT_EQ(4 * sent_of(*compressor, n, {.seed = 3}).size(), static_cast<size_t>(bytes)) << density << " of " << n;
    }
  }
}

// Counts over 4000 steps: a chi-square test with 99 degrees of freedom, whose standard deviation is 14.
TEST(RandK, SendsEachElementAsOften) {
  for (size_t n : {100, 103}) {
    const auto compressor = make("randk:0.07");
    constexpr uint32_t kSteps = 4000;
    std::vector<double> counts(n);
    double all = 0;
    for (uint32_t step = 0; step < kSteps; ++step) {
      for (const size_t i : sent_of(*compressor, n, {.seed = 7, .step = step})) ++counts[i], ++all;
    }
    const double expected = all / static_cast<double>(n);
    double chi_square = 0;
    for (double count : counts) chi_square += (count - expected) * (count - expected) / expected;
    EXPECT_LT(chi_square, static_cast<double>(n) + 4 * std::sqrt(2.0 * static_cast<double>(n)));
  }
}

// E ||p - C(p)||^2 = (1 - k / n) ||p||^2.
TEST(RandK, KeepsItsShareOfTheNormOnAverage) {
  constexpr size_t n = 1000;
  constexpr uint32_t kSteps = 3000;
  const auto compressor = make("randk:0.05");
  EncodeCase job{.gradient = make_data(Data::normal, n)};
  double total = 0, missed = 0;
  for (float value : job.gradient) total += double{value} * double{value};
  for (job.random.step = 0; job.random.step < kSteps; ++job.random.step) {
    for (float error : encode(*compressor, job).residual_next) missed += double{error} * double{error} / kSteps;
  }
  EXPECT_NEAR(missed / total, 0.95, 0.002);
}

TEST(RandK, DecodingASumIsTheSumOfWhatIsDecoded) {
  constexpr size_t n = 5000;
  const auto compressor = make("randk:0.1");
  std::vector<float> total;
  std::vector<Payload> payloads;
  EncodeCase job;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    job = {.gradient = make_data(Data::normal, n, rank), .random = {.seed = 1, .step = 5, .rank = rank}};
    payloads.push_back(encode(*compressor, job).payload);
  }
  Payload sum(payloads[0].size());
  for (size_t i = 0; i < sum.size(); i += 4) {
    float added = 0, value = 0;
    for (const Payload& payload : payloads) {
      std::memcpy(&value, &payload[i], 4);
      added += value;
    }
    std::memcpy(&sum[i], &added, 4);
  }
  EXPECT_EQ(decode(*compressor, decoding_of(job, {sum})).value(),
            decode(*compressor, decoding_of(job, payloads)).value());
}

// Results are written, not added, but have the sign of a sum that began with zero.
TEST(RandK, ANegativeZeroIsDecodedToZero) {
  const auto compressor = make("randk:1");
  const EncodeCase job{.gradient = std::vector<float>(100, -0.0F)};
  const Payload payload = encode(*compressor, job).payload;
  for (size_t payloads : {1, 2}) {
    const std::vector<Payload> all(payloads, payload);
    const std::vector<float> decoded = decode(*compressor, decoding_of(job, all)).value();
    for (float value : decoded) EXPECT_EQ(std::bit_cast<uint32_t>(value), 0U);
  }
}

}  // namespace
}  // namespace gradtune::suites
