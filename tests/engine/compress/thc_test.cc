// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests THC: sums of codes are codes of sums, the maximum of norms, what is unbiased, and what is kept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/compress/calls.h"
#include "engine/compress/shared.h"
#include "tests/suites/compressor_harness.h"
#include "tests/suites/reference_compressors.h"

namespace gradtune::suites {
namespace {

using Bytes = std::vector<std::byte>;

// Ranks that encode at the same time: they agree on their norms, and their codes are added up.
struct Ranks {
  std::unique_ptr<compress::Compressor> compressor;
  std::vector<std::vector<float>> gradients;
  compress::Random random = {.seed = 5, .step = 3};

  size_t n() const { return gradients[0].size(); }
  float scale() const { return 1 / static_cast<float>(gradients.size()); }

  // The payload of a rank in that round; `norms`: the result of the first round.
  Bytes payload(size_t rank, int round, Bytes& norms, std::vector<float>* error = nullptr) const {
    const auto queue = compress::make_serial_queue();
    Guarded<std::byte> bytes(static_cast<size_t>(compressor->payload_bytes(static_cast<int64_t>(n()), round)));
    compress::Work work{.random = random, .round = round, .round_memory = norms.data()};
    work.random.rank = static_cast<uint32_t>(rank);
    EXPECT_TRUE(compress::encode_now(*compressor,
                                     {.gradient = gradients[rank],
                                      .residual_next = error == nullptr ? nullptr : error->data(),
                                      .scale = scale(),
                                      .error_scale = 1 / scale(),
                                      .work = work,
                                      .payload = bytes.span(),
                                      .scratch = {}},
                                     *queue));
    return bytes.values();
  }

  core::Status decode(int round, const std::vector<Bytes>& payloads, int summed, Bytes& norms,
                      std::vector<float>& out) const {
    std::vector<std::span<const std::byte>> spans(payloads.begin(), payloads.end());
    return compress::decode_now(*compressor,
                                {.payloads = spans,
                                 .summed = summed,
                                 .out = out,
                                 .work = {.random = random, .round = round, .round_memory = norms.data()}},
                                *compress::make_serial_queue());
  }

  Bytes agreed_norms() const {
    Bytes norms(static_cast<size_t>(compressor->round_bytes(static_cast<int64_t>(n()))));
    std::vector<Bytes> payloads;
    for (size_t rank = 0; rank < gradients.size(); ++rank) payloads.push_back(payload(rank, 0, norms));
    std::vector<float> unused(n());
    EXPECT_TRUE(decode(0, payloads, 1, norms, unused).ok());
    return norms;
  }
};

Ranks make_ranks(const std::string& spec, size_t ranks, size_t n, Data kind = Data::layered) {
  Ranks made{.compressor = make(spec), .gradients = {}};
  for (uint64_t rank = 0; rank < ranks; ++rank) made.gradients.push_back(make_data(kind, n, 31 + rank));
  return made;
}

double norm(const std::vector<float>& values) {
  double squares = 0;
  for (float value : values) squares += double{value} * double{value};
  return std::sqrt(squares);
}

TEST(Thc, TheNormOfABlockIsTheLargestOfAllRanks) {
  const Ranks ranks = make_ranks("thc:30", 3, 3000);
  const Bytes norms = ranks.agreed_norms();
  ASSERT_EQ(norms.size(), 12U);
  for (size_t block = 0; block < 3; ++block) {
    double largest = 0;
    for (const std::vector<float>& gradient : ranks.gradients) {
      const auto begin = gradient.begin() + static_cast<std::ptrdiff_t>(1024 * block);
      const std::vector<float> part(begin, begin + (block < 2 ? 1024 : 3000 - 2048));
      largest = std::max(largest, norm(part) / 3);
    }
    float agreed = 0;
    std::memcpy(&agreed, &norms[4 * block], 4);
    EXPECT_NEAR(agreed, largest, 1e-6 * largest);
  }
}

// The homomorphism: the sum of codes decodes to the sum of the decoded codes.
TEST(Thc, DecodingASumOfCodesIsTheSumOfWhatIsDecoded) {
  for (const auto& [spec, size] : {std::pair<std::string, size_t>{"thc:30", 8}, {"thc:127", 2}, {"thc:5", 51}}) {
    const Ranks ranks = make_ranks(spec, size, 5000);
    Bytes norms = ranks.agreed_norms();
    std::vector<Bytes> payloads;
    std::vector<float> sum(ranks.n()), one(ranks.n()), together(ranks.n());
    Bytes total;
    for (size_t rank = 0; rank < size; ++rank) {
      payloads.push_back(ranks.payload(rank, 1, norms));
      ASSERT_TRUE(ranks.decode(1, {payloads.back()}, 1, norms, one).ok());
      for (size_t i = 0; i < one.size(); ++i) sum[i] += one[i];
      total.resize(payloads.back().size());
      for (size_t i = 0; i < total.size(); ++i) {
        const int added = std::to_integer<int>(total[i]) + std::to_integer<int>(payloads.back()[i]);
        ASSERT_LE(added, 255);
        total[i] = static_cast<std::byte>(added);
      }
    }
    ASSERT_TRUE(ranks.decode(1, {total}, static_cast<int>(size), norms, together).ok());
    std::vector<float> gathered(ranks.n());
    ASSERT_TRUE(ranks.decode(1, payloads, 1, norms, gathered).ok());
    EXPECT_TRUE(same_bytes(gathered, together));
    for (size_t i = 0; i < sum.size(); ++i) sum[i] -= together[i];
    EXPECT_LE(norm(sum), 1e-5 * norm(together)) << spec;
  }
}

// With more payloads than have exact sums, sums of some are added to those of others.
TEST(Thc, ManyPayloadsAreAddedUp) {
  const Ranks ranks = make_ranks("thc:2", 100, 3000);
  Bytes norms = ranks.agreed_norms();
  std::vector<Bytes> payloads;
  for (size_t rank = 0; rank < 100; ++rank) payloads.push_back(ranks.payload(rank, 1, norms));
  std::vector<float> gathered(ranks.n()), one(ranks.n());
  ASSERT_TRUE(ranks.decode(1, payloads, 1, norms, gathered).ok());
  std::vector<double> sum(ranks.n());
  for (const Bytes& payload : payloads) {
    ASSERT_TRUE(ranks.decode(1, {payload}, 1, norms, one).ok());
    for (size_t i = 0; i < one.size(); ++i) sum[i] += one[i];
  }
  const double largest = std::abs(*std::max_element(sum.begin(), sum.end()));
  for (size_t i = 0; i < sum.size(); ++i) ASSERT_NEAR(gathered[i], sum[i], 1e-5 * largest) << i;
}

TEST(Thc, ASumThatNoRanksCouldHaveMadeIsRejected) {
  const Ranks ranks = make_ranks("thc:30", 2, 100);
  Bytes norms = ranks.agreed_norms();
  std::vector<float> out(100);
  Bytes payload = ranks.payload(0, 1, norms);
  payload[7] = std::byte{61};
  const core::Status status = ranks.decode(1, {payload}, 2, norms, out);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message, "payload 0 of 1: sum 7 is 61; sums are at most 60");
  payload[7] = std::byte{60};
  EXPECT_TRUE(ranks.decode(1, {payload}, 2, norms, out).ok());
}

TEST(Thc, AsManyRanksAsLevelsLeaveRoomFor) {
  for (const auto& [spec, most] : {std::pair<std::string, int>{"thc:30", 8}, {"thc:127", 2}, {"thc:2", 127}}) {
    const auto compressor = make(spec);
    EXPECT_EQ(core::most_ranks(compressor->traits(), compressor->spec()), most);
  }
}

// The random bits for a rank's rounding are independent of the signs of rotations, on rank 0 too.
TEST(Thc, RoundsWithOtherRandomBitsThanItRotatesWith) {
  const compress::Random random{.seed = 5, .step = 3, .use = 1};
  int same = 0;
  for (uint64_t element = 0; element < 4096; ++element) {
    // its counter, as defined in random-inl.h
    const auto block = static_cast<int64_t>(element / 64 * 8 + element % 32 / 4);
    for (const uint32_t word : compress::shared_random(random, block)) {
      const uint16_t bits = reference_random(random, element);
      same += (word & 0xffff) == bits || word >> 16 == bits ? 1 : 0;
    }
  }
  EXPECT_LT(same, 10);
}

// A block with one element is spread evenly, so nothing is clamped.
TEST(Thc, WhatIsNotClampedIsUnbiased) {
  constexpr int kSteps = 4000;
  Ranks ranks = make_ranks("thc:4", 1, 64, Data::zero);
  ranks.gradients[0][17] = -3;
  std::vector<double> sum(64), squares(64);
  std::vector<float> out(64);
  for (int step = 0; step < kSteps; ++step) {
    ranks.random.step = static_cast<uint32_t>(step);
    Bytes norms = ranks.agreed_norms();
    ASSERT_TRUE(ranks.decode(1, {ranks.payload(0, 1, norms)}, 1, norms, out).ok());
    for (size_t i = 0; i < out.size(); ++i) {
      const double error = double{out[i]} - double{ranks.gradients[0][i]};
      sum[i] += error;
      squares[i] += error * error;
    }
  }
  for (size_t i = 0; i < sum.size(); ++i) {
    EXPECT_GT(squares[i], 0);
    EXPECT_LE(std::abs(sum[i]), 4.5 * std::sqrt(squares[i])) << i;
  }
}

// Rotations preserve norms, so the residual is the loss of clamping and rounding: less with more levels.
TEST(Thc, MoreLevelsKeepLess) {
  double before = 1;
  for (const char* spec : {"thc:2", "thc:6", "thc:15", "thc:30", "thc:60", "thc:127"}) {
    const Ranks ranks = make_ranks(spec, 1, 65536, Data::normal);
    Bytes norms = ranks.agreed_norms();
    std::vector<float> error(ranks.n());
    (void)ranks.payload(0, 1, norms, &error);
    const double share = norm(error) / norm(ranks.gradients[0]);
    EXPECT_LT(share, 0.9 * before) << spec;
    before = share;
  }
  EXPECT_LT(before, 0.03);
}

}  // namespace
}  // namespace gradtune::suites
