// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What is special about `topk`: how many elements and which, what happens where selection takes its slow paths, and
// that what is not sent is kept bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/core/float16.h"
#include "engine/core/rng.h"
#include "tests/suites/compressor_harness.h"
#include "tests/suites/reference_compressors.h"

namespace gradtune::suites {
namespace {

struct Header {
  uint32_t magic, compressor, n, count;
};

constexpr size_t kBlock = 8192;

struct Parsed {
  Header header;
  std::vector<uint32_t> indices;
  std::vector<float> values;
};

size_t section(size_t bytes) { return (bytes + 15) / 16 * 16; }
size_t blocks_of(size_t n) { return (n + kBlock - 1) / kBlock; }
size_t positions_at(size_t n) { return 16 + section(blocks_of(n) * 4); }
size_t values_at(size_t n, size_t k) { return positions_at(n) + section(k * 2); }

Parsed parse(const Payload& payload) {
  Parsed parsed;
  std::memcpy(&parsed.header, payload.data(), sizeof parsed.header);
  const size_t n = parsed.header.n, k = parsed.header.count;
  std::vector<uint32_t> starts(blocks_of(n) + 1, static_cast<uint32_t>(k));
  std::memcpy(starts.data(), payload.data() + 16, blocks_of(n) * 4);
  for (size_t block = 0; block < blocks_of(n); ++block) {
    for (size_t i = starts[block]; i < starts[block + 1]; ++i) {
      uint16_t position, value;
      std::memcpy(&position, payload.data() + positions_at(n) + 2 * i, 2);
      std::memcpy(&value, payload.data() + values_at(n, k) + 2 * i, 2);
      parsed.indices.push_back(static_cast<uint32_t>(block * kBlock + position));
      parsed.values.push_back(core::widen_bf16(value));
    }
  }
  return parsed;
}

// Positions of the k largest |p|, ascending.
std::vector<uint32_t> expected_indices(const std::vector<float>& p, size_t k) {
  std::vector<uint32_t> order(p.size());
  for (size_t i = 0; i < p.size(); ++i) order[i] = static_cast<uint32_t>(i);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return std::abs(p[a]) > std::abs(p[b]); });
  order.resize(k);
  std::sort(order.begin(), order.end());
  return order;
}

TEST(TopK, sends_the_rounded_up_share) {
  const struct {
    const char* spec;
    size_t n, k;
  } cases[] = {{"topk", 0, 0},         {"topk", 1, 1},         {"topk", 100, 2},    {"topk", 101, 3},
               {"topk:0.07", 100, 7},  {"topk:0.1", 30, 3},    {"topk:0.3", 10, 3}, {"topk:1", 1000, 1000},
               {"topk:1e-06", 999, 1}, {"topk:0.5", 1001, 501}};
  for (const auto& [spec, n, k] : cases) {
    const auto compressor = make(spec);
    EXPECT_EQ(compressor->payload_bytes(static_cast<int64_t>(n)),
              static_cast<int64_t>(values_at(n, k) + section(k * 2)))
        << spec;
    const Parsed parsed = parse(encode(*compressor, {.gradient = make_data(Data::ties, n)}).payload);
    EXPECT_EQ(parsed.header.n, n) << spec;
    EXPECT_EQ(parsed.header.count, k) << spec;
  }
  EXPECT_EQ(make("topk:0.01")->payload_bytes(8550000), 16 + 4 * 1044 + 2 * 171008);
}

TEST(TopK, sends_the_largest_and_of_equal_ones_the_first) {
  for (const char* spec : {"topk:0.001", "topk:0.01", "topk:0.1", "topk:0.6"}) {
    const auto compressor = make(spec);
    for (size_t n : {10, 1000, 8192, 50000, 300001}) {
      for (Data kind : kAllData) {
        const std::vector<float> p = make_data(kind, n);
        const Parsed parsed = parse(encode(*compressor, {.gradient = p, .scale = 0.5F}).payload);
        EXPECT_EQ(parsed.indices, expected_indices(p, parsed.header.count)) << spec << " of " << n;
        for (size_t i = 0; i < parsed.indices.size(); ++i)
          ASSERT_EQ(parsed.values[i], round_to_bf16(p[parsed.indices[i]] / 2));
      }
    }
  }
}

// Large elements in clusters make samples of the data unreliable in both directions: the guess from them must not
// matter.
TEST(TopK, is_exact_when_a_sample_misleads) {
  constexpr size_t n = 8192 + 100, cluster = 64;
  const auto compressor = make("topk:0.02");
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    core::Rng rng(seed);
    std::vector<float> p(n);
    for (size_t begin = 0; begin < n; begin += cluster) {
      const float size = rng.below(50) == 0 ? 100.0F : 1.0F;
      for (size_t i = begin; i < std::min(n, begin + cluster); ++i) p[i] = size * static_cast<float>(rng.normal());
    }
    const Parsed parsed = parse(encode(*compressor, {.gradient = p}).payload);
    ASSERT_EQ(parsed.indices, expected_indices(p, parsed.header.count)) << "seed " << seed;
  }
}

// As close as any k elements can be, but for their rounding: the error is at most (1 - k/n) of the norm, squared.
TEST(TopK, contracts) {
  const auto compressor = make("topk:0.05");
  for (Data kind : kAllData) {
    const std::vector<float> p = make_data(kind, 20000);
    const Encoded encoded = encode(*compressor, {.gradient = p});
    double norm = 0, missed = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      norm += double{p[i]} * p[i];
      missed += double{encoded.residual_next[i]} * encoded.residual_next[i];
    }
    EXPECT_LE(missed, (1 - 0.05) * norm * (1 + 1e-5));
  }
}

TEST(TopK, keeps_what_it_does_not_send_bit_for_bit) {
  for (int ranks : {1, 2, 3, 41, 47, 128, 1000}) {  // 1/41 * 41 is not 1 in fp32
    const auto compressor = make("topk");
    const EncodeCase job{.gradient = make_data(Data::layered, 30000, 1),
                         .residual = make_data(Data::layered, 30000, 2),
                         .scale = 1.0F / static_cast<float>(ranks),
                         .error_scale = static_cast<float>(ranks)};
    const Encoded encoded = encode(*compressor, job);
    std::vector<float> expected = corrected(job);
    const Parsed parsed = parse(encoded.payload);
    for (size_t i = 0; i < parsed.indices.size(); ++i) {
      float& kept = expected[parsed.indices[i]];
      const float unsent = kept * (job.scale * job.error_scale == 1 ? 1.0F : job.scale * job.error_scale);
      kept = encoded.residual_next[parsed.indices[i]];
      EXPECT_NEAR(kept, unsent - job.error_scale * parsed.values[i], std::abs(unsent) * 3e-7F) << ranks;
    }
    EXPECT_TRUE(same_bytes(encoded.residual_next, expected)) << ranks;
  }
}

TEST(TopK, non_finite_input_is_passed_on) {
  std::vector<float> gradient(1000, 1.0F);
  gradient[500] = HUGE_VALF;
  const auto compressor = make("topk");
  const Encoded encoded = encode(*compressor, {.gradient = gradient});
  EXPECT_FALSE(encoded.finite);
  const std::vector<float> decoded = decode(*compressor, {.payloads = {encoded.payload}, .n = 1000}).value();
  EXPECT_TRUE(std::isnan(decoded[0]));
}

class TopKPayload : public testing::Test {
 protected:
  static constexpr size_t kElements = 50;
  const std::unique_ptr<compress::Compressor> compressor_ = make("topk:0.1");  // 5 elements
  Payload payload_ = encode(*compressor_, {.gradient = make_data(Data::normal, kElements)}).payload;

  void put(size_t at, uint32_t word) { std::memcpy(payload_.data() + at, &word, sizeof word); }
  void put16(size_t at, uint16_t word) { std::memcpy(payload_.data() + at, &word, sizeof word); }
  std::string rejection() {
    const auto result = decode(*compressor_, {.payloads = {payload_}, .n = kElements});
    return result.ok() ? "" : result.error().message;
  }
};

TEST_F(TopKPayload, every_field_of_the_header_is_checked) {
  const Payload good = payload_;
  const char* const names[] = {"magic or version", "compressor id", "number of elements", "count"};
  for (size_t field = 0; field < 4; ++field) {
    for (uint32_t word : {0U, 6U, 0xffffffffU}) {
      payload_ = good;
      put(4 * field, word);
      EXPECT_THAT(rejection(), testing::StartsWith(std::string("payload 0 of 1: ") + names[field] + " is "));
    }
  }
}

TEST_F(TopKPayload, positions_ascend_and_are_in_range) {
  const uint16_t first = static_cast<uint16_t>(parse(payload_).indices[0]),
                 second = static_cast<uint16_t>(parse(payload_).indices[1]);
  put16(32 + 2 * 4, kElements);
  EXPECT_EQ(rejection(), "payload 0 of 1: position 4 in block 0 is 50; they ascend and are below 50");
  put16(32 + 2 * 4, kElements - 1);
  EXPECT_EQ(rejection(), "");
  put16(32, second);
  EXPECT_THAT(rejection(), testing::StartsWith("payload 0 of 1: position 1 in block 0 is "));
  put16(32, 0xffff);
  EXPECT_THAT(rejection(), testing::StartsWith("payload 0 of 1: position 0 in block 0 is 65535; "));
  put16(32, first);
  EXPECT_EQ(rejection(), "");
}

TEST(TopKBlocks, starts_ascend_from_0_to_the_count) {
  const size_t n = 3 * kBlock + 10;
  const auto compressor = make("topk:0.01");
  const Payload good = encode(*compressor, {.gradient = make_data(Data::normal, n)}).payload;
  uint32_t count;
  std::memcpy(&count, good.data() + 12, 4);
  for (size_t block = 0; block < 4; ++block) {
    for (const uint32_t word : {1U, count + 1, 0xffffffffU}) {
      if (block > 0 && word == 1) continue;  // may be a start; then positions do not ascend
      Payload payload = good;
      std::memcpy(payload.data() + 16 + 4 * block, &word, 4);
      const auto result = decode(*compressor, {.payloads = {good, payload}, .n = n});
      ASSERT_FALSE(result.ok());
      EXPECT_THAT(result.error().message, testing::StartsWith("payload 1 of 2: start of block "));
      EXPECT_THAT(result.error().message, testing::HasSubstr("starts ascend from 0 to the count"));
    }
  }
}

TEST_F(TopKPayload, values_that_are_not_finite_are_data) {
  put16(48, 0x7fc0);
  EXPECT_EQ(rejection(), "");
}

TEST_F(TopKPayload, padding_is_zero_and_is_not_read) {
  const auto before = decode(*compressor_, {.payloads = {payload_}, .n = kElements}).value();
  for (const auto& [begin, end] : {std::pair{20, 32}, {42, 48}, {58, 64}}) {
    for (int i = begin; i < end; ++i) {
      EXPECT_EQ(payload_[static_cast<size_t>(i)], 0);
      payload_[static_cast<size_t>(i)] = 0xff;
    }
  }
  EXPECT_EQ(decode(*compressor_, {.payloads = {payload_}, .n = kElements}).value(), before);
}

}  // namespace
}  // namespace gradtune::suites
