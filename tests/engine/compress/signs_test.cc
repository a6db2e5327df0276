// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests the compressors that send signs: their payloads, equalities, votes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/suites/compressor_harness.h"

namespace gradtune::suites {
namespace {

size_t section(size_t bytes) { return (bytes + 15) / 16 * 16; }

float word_of(const Payload& payload, size_t at) {
  float value;
  std::memcpy(&value, payload.data() + at, sizeof value);
  return value;
}

TEST(EfSignSgd, SendsABitForEachElementAndAScaleForEachBlock) {
  const auto compressor = make("efsignsgd:8");
  const Encoded encoded =
      encode(*compressor, {.gradient = {1, -2, 3, -4, 5, -6, 7, -8, -1, -1, 4}, .scale = 0.5F, .error_scale = 2});
  ASSERT_EQ(encoded.payload.size(), 16U + 16 + 16);
  EXPECT_EQ(word_of(encoded.payload, 16), 2.25F);
  EXPECT_EQ(word_of(encoded.payload, 20), 1.0F);
  EXPECT_EQ(encoded.payload[32], 0b10101010);
  EXPECT_EQ(encoded.payload[33], 0b011);
  EXPECT_EQ(decode(*compressor, {.payloads = {encoded.payload}, .n = 11}).value(),
            (std::vector<float>{2.25, -2.25, 2.25, -2.25, 2.25, -2.25, 2.25, -2.25, -1, -1, 1}));
  EXPECT_EQ(encoded.residual_next, (std::vector<float>{-3.5, 2.5, -1.5, 0.5, 0.5, -1.5, 2.5, -3.5, 1, 1, 2}));
}

TEST(EfSignSgd, PayloadSizeFollowsTheBlock) {
  for (size_t block : {8, 24, 64, 4096, 65536}) {
    const auto compressor = make("efsignsgd:" + std::to_string(block));
    for (size_t n : {0, 1, 8, 100, 100000}) {
      const size_t blocks = (n + block - 1) / block;
      EXPECT_EQ(compressor->payload_bytes(static_cast<int64_t>(n)),
                static_cast<int64_t>(16 + section(4 * blocks) + section((n + 7) / 8)));
    }
  }
}

// For each block, ||p - C(p)||^2 = ||p||^2 - ||p||_1^2 / size.
TEST(EfSignSgd, KeepsItsEqualityInEveryBlock) {
  for (size_t block : {8, 24, 64, 1000, 8192, 65536}) {
    const auto compressor = make("efsignsgd:" + std::to_string(block));
    const std::vector<float> p = make_data(Data::layered, 100001);
    const Encoded encoded = encode(*compressor, {.gradient = p});
    for (size_t begin = 0; begin < p.size(); begin += block) {
      const size_t end = std::min(p.size(), begin + block);
      double norm = 0, sum = 0, missed = 0;
      for (size_t i = begin; i < end; ++i) {
        norm += double{p[i]} * p[i];
        sum += std::abs(double{p[i]});
        missed += double{encoded.residual_next[i]} * encoded.residual_next[i];
      }
      EXPECT_NEAR(missed, norm - sum * sum / static_cast<double>(end - begin), 1e-6 * norm);
    }
  }
}

TEST(EfSignSgd, NegativeZeroCountsAsNegativeEverywhere) {
  const auto compressor = make("efsignsgd:8");
  const Encoded encoded = encode(*compressor, {.gradient = {-0.0F, 0.0F, 8, 8, 8, 8, 8, 8}});
  EXPECT_EQ(encoded.payload[32], 0b01);
  const std::vector<float> decoded = decode(*compressor, {.payloads = {encoded.payload}, .n = 8}).value();
  EXPECT_EQ(decoded, (std::vector<float>{-6, 6, 6, 6, 6, 6, 6, 6}));
  EXPECT_EQ(encoded.residual_next, (std::vector<float>{6, -6, 2, 2, 2, 2, 2, 2}));
}

TEST(EfSignSgd, AScaleIsFiniteAndNotNegativeOrRejected) {
  const auto compressor = make("efsignsgd:8");
  constexpr size_t kElements = 8 * 18 + 3, kScales = 19;  // some are processed together, others one by one
  const Payload good = encode(*compressor, {.gradient = make_data(Data::normal, kElements)}).payload;
  for (float scale : {-1.0F, -0.0F, HUGE_VALF, -HUGE_VALF, NAN}) {
    for (size_t at = 0; at < kScales; ++at) {
      Payload payload = good;
      std::memcpy(payload.data() + 16 + 4 * at, &scale, sizeof scale);
      const auto result = decode(*compressor, {.payloads = {good, payload}, .n = kElements});
      ASSERT_FALSE(result.ok()) << at;
      EXPECT_THAT(result.error().message, testing::StartsWith("payload 1 of 2: scale " + std::to_string(at) + " is "));
    }
  }
}

TEST(EfSignSgd, ASumThatOverflowsIsNotFinite) {
  EXPECT_FALSE(encode(*make("efsignsgd"), {.gradient = std::vector<float>(64, 3e38F)}).finite);
  // Each block's own sum counts, not the total.
  EXPECT_TRUE(encode(*make("efsignsgd:64"), {.gradient = std::vector<float>(6400, 1e36F)}).finite);
}

TEST(EfSignSgd, PaddingIsZeroAndIsNotRead) {
  const auto compressor = make("efsignsgd:8");
  Payload payload = encode(*compressor, {.gradient = std::vector<float>(11, -1)}).payload;
  const auto before = decode(*compressor, {.payloads = {payload}, .n = 11}).value();
  EXPECT_EQ(payload[33], 0b111);  // bits behind the last element are zero
  payload[33] |= 0b11111000;
  for (size_t i : {24, 25, 26, 27, 28, 29, 30, 31, 34, 35, 40, 47}) {
    EXPECT_EQ(payload[i], 0);
    payload[i] = 0xff;
  }
  EXPECT_EQ(decode(*compressor, {.payloads = {payload}, .n = 11}).value(), before);
}

// --- onebit ----------------------------------------------------------------------------------------------------------

TEST(OneBit, SendsABitForEachElementAndTwoMeansForEachBlock) {
  const auto compressor = make("onebit:8");
  const Encoded encoded =
      encode(*compressor, {.gradient = {1, -2, 3, -4, 5, -6, 7, 0, -1, -2, -3}, .scale = 0.5F, .error_scale = 2});
  ASSERT_EQ(encoded.payload.size(), 16U + 16 + 16);
  EXPECT_FLOAT_EQ(word_of(encoded.payload, 16), 1.6F);
  EXPECT_EQ(word_of(encoded.payload, 20), 2.0F);
  EXPECT_EQ(word_of(encoded.payload, 24), 0.0F);  // an empty side
  EXPECT_EQ(word_of(encoded.payload, 28), 1.0F);
  EXPECT_EQ(encoded.payload[32], 0b00101010);
  EXPECT_EQ(encoded.payload[33], 0b111);
  const std::vector<float> decoded = decode(*compressor, {.payloads = {encoded.payload}, .n = 11}).value();
  EXPECT_THAT(decoded,
              testing::Pointwise(testing::FloatEq(), {1.6, -2.0, 1.6, -2.0, 1.6, -2.0, 1.6, 1.6, -1.0, -1.0, -1.0}));
}

// ||C(p)||^2 + ||p - C(p)||^2 = ||p||^2 in every block.
TEST(OneBit, IsAnOrthogonalProjection) {
  for (size_t block : {8, 24, 256, 1000, 65536}) {
    const auto compressor = make("onebit:" + std::to_string(block));
    const std::vector<float> p = make_data(Data::layered, 100001);
    const Encoded encoded = encode(*compressor, {.gradient = p});
    const std::vector<float> decoded = decode(*compressor, {.payloads = {encoded.payload}, .n = p.size()}).value();
    for (size_t begin = 0; begin < p.size(); begin += block) {
      double norm = 0, sent = 0, missed = 0;
      for (size_t i = begin; i < std::min(p.size(), begin + block); ++i) {
        norm += double{p[i]} * p[i];
        sent += double{decoded[i]} * decoded[i];
        missed += double{encoded.residual_next[i]} * encoded.residual_next[i];
      }
      EXPECT_NEAR(sent + missed, norm, 1e-6 * norm);
    }
  }
}

// --- signsgd ---------------------------------------------------------------------------------------------------------

// The votes of all ranks, and their sum encoded again, as in a program of two steps.
std::vector<float> majority(const std::vector<std::vector<float>>& ranks) {
  const auto compressor = make("signsgd");
  const size_t n = ranks[0].size();
  DecodeCase votes{.payloads = {}, .n = n};
  for (const std::vector<float>& gradient : ranks) {
    const EncodeCase vote{.gradient = gradient, .scale = 1 / static_cast<float>(ranks.size())};
    votes.payloads.push_back(encode(*compressor, vote).payload);
  }
  const Encoded again = encode(*compressor, {.gradient = decode(*compressor, votes).value()});
  return decode(*compressor, {.payloads = {again.payload}, .n = n}).value();
}

TEST(SignSgd, TwoStepsAreAMajorityVoteAndATieIsPositive) {
  for (size_t size : {1, 2, 3, 5, 6, 7, 10, 64, 100}) {
    std::vector<std::vector<float>> ranks;
    for (size_t rank = 0; rank < size; ++rank) ranks.push_back(make_data(Data::normal, 500, rank + 1));
    const std::vector<float> decided = majority(ranks);
    for (size_t i = 0; i < decided.size(); ++i) {
      int balance = 0;
      for (const std::vector<float>& gradient : ranks) balance += std::signbit(gradient[i]) ? -1 : 1;
      EXPECT_EQ(decided[i], balance < 0 ? -1 : 1) << size << " ranks";
    }
  }
}

TEST(SignSgd, APayloadIsAVoteWithTheWeightOfItsRank) {
  const auto compressor = make("signsgd");
  const Encoded encoded = encode(*compressor, {.gradient = {3, -0.5F, 0.0F, -0.0F}, .scale = 0.25F, .error_scale = 4});
  EXPECT_EQ(decode(*compressor, {.payloads = {encoded.payload}, .n = 4}).value(),
            (std::vector<float>{0.25F, -0.25F, 0.25F, -0.25F}));
  EXPECT_EQ(encoded.residual_next, (std::vector<float>{2, 0.5F, -1, 1}));
  EXPECT_EQ(compressor->payload_bytes(100000), static_cast<int64_t>(16 + section(4 * 13) + section(12500)));
}

// m = 0.9 m + 0.1 g, and the signs are those of m.
TEST(SigNum, SendsTheSignsOfMomentumThatItKeeps) {
  constexpr size_t n = 20001;
  const auto compressor = make("signum");
  ASSERT_EQ(compressor->state_bytes(static_cast<int64_t>(n)), static_cast<int64_t>(4 * n));
  std::vector<float> momentum(n);
  std::vector<unsigned char> state(4 * n);
  for (uint64_t step = 0; step < 5; ++step) {
    const EncodeCase job{
        .gradient = make_data(Data::layered, n, step), .keep_error = false, .scale = 0.5F, .state = state};
    const Encoded encoded = encode(*compressor, job);
    ASSERT_TRUE(encoded.finite);
    for (size_t i = 0; i < n; ++i) momentum[i] = 0.9F * momentum[i] + (1 - 0.9F) * job.gradient[i];
    state = encoded.state_next;
    std::vector<float> kept(n);
    std::memcpy(kept.data(), state.data(), state.size());
    EXPECT_TRUE(same_bytes(kept, momentum)) << step;
    const std::vector<float> decoded = decode(*compressor, decoding_of(job, {encoded.payload})).value();
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(decoded[i], std::signbit(momentum[i]) ? -0.5F : 0.5F) << i;
  }
}

TEST(SigNum, AMomentumThatIsNotFiniteIsSeen) {
  const auto compressor = make("signum");
  EncodeCase job{.gradient = make_data(Data::normal, 1000), .keep_error = false};
  job.state.assign(4000, 0);
  EXPECT_TRUE(encode(*compressor, job).finite);
  std::fill_n(job.state.begin() + 400, 4, uint8_t{0xff});
  EXPECT_FALSE(encode(*compressor, job).finite);
}

}  // namespace
}  // namespace gradtune::suites
