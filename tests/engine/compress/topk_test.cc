// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests `topk`: the number and choice of elements, the slow paths of selection, and that unsent elements are kept
// bit for bit.
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
  const size_t values =
      positions_at(n) + (payload.size() - positions_at(n)) / 2;  // both sections have room for the same number
  std::vector<uint32_t> starts(blocks_of(n) + 1, static_cast<uint32_t>(k));
  std::memcpy(starts.data(), payload.data() + 16, blocks_of(n) * 4);
  for (size_t block = 0; block < blocks_of(n); ++block) {
    for (size_t i = starts[block]; i < starts[block + 1]; ++i) {
      uint16_t position, value;
      std::memcpy(&position, payload.data() + positions_at(n) + 2 * i, 2);
      std::memcpy(&value, payload.data() + values + 2 * i, 2);
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

TEST(TopK, SendsTheRoundedUpShare) {
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

TEST(TopK, SendsTheLargestAndOfEqualOnesTheFirst) {
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

// Large elements in clusters make samples of the data unreliable in both directions. The first guess must not
// matter.
TEST(TopK, IsExactWhenASampleMisleads) {
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

// The error is that of the best k elements, except for rounding: at most (1 - k/n) of the norm, squared.
TEST(TopK, Contracts) {
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

TEST(TopK, KeepsWhatItDoesNotSendBitForBit) {
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

TEST(TopK, NonFiniteInputIsPassedOn) {
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

TEST_F(TopKPayload, EveryFieldOfTheHeaderIsChecked) {
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

TEST_F(TopKPayload, PositionsAscendAndAreInRange) {
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

// Positions are processed in vectors, the last of which overlaps the one before. For numbers of positions that fill
// no vector, some, and parts of vectors, all positions are decoded from both pieces of a block. Each one that does
// not ascend is rejected.
TEST(TopKBlocks, EveryPositionCountsWhateverTheirNumber) {
  const auto compressor = make("topk:0.01");
  for (size_t k = 1; k <= 82; ++k) {
    const size_t n = k == 82 ? kBlock : 100 * k - 50;
    const std::vector<float> gradient = make_data(Data::normal, n);
    const Payload good = encode(*compressor, {.gradient = gradient}).payload;
    const Parsed parsed = parse(good);
    ASSERT_EQ(parsed.indices.size(), k);
    std::vector<float> expected(n, 0.0F);
    for (size_t i = 0; i < k; ++i) expected[parsed.indices[i]] = parsed.values[i];
    EXPECT_EQ(decode(*compressor, {.payloads = {good}, .n = n}).value(), expected);
    for (size_t i = 0; i + 1 < k; ++i) {
      Payload payload = good;
      std::memcpy(payload.data() + positions_at(n) + 2 * i, good.data() + positions_at(n) + 2 * (i + 1), 2);
      const auto result = decode(*compressor, {.payloads = {payload}, .n = n});
      ASSERT_FALSE(result.ok()) << i << " of " << k;
      EXPECT_THAT(result.error().message, testing::HasSubstr("; they ascend and are below "));
    }
  }
}

TEST(TopKBlocks, StartsAscendFrom0ToTheCount) {
  const size_t n = 3 * kBlock + 10;
  const auto compressor = make("topk:0.01");
  const Payload good = encode(*compressor, {.gradient = make_data(Data::normal, n)}).payload;
  uint32_t count;
  std::memcpy(&count, good.data() + 12, 4);
  for (size_t block = 0; block < 4; ++block) {
    for (const uint32_t word : {1U, count + 1, 0xffffffffU}) {
      if (block > 0 && word == 1) continue;  // it may be a valid start; then positions do not ascend
      Payload payload = good;
      std::memcpy(payload.data() + 16 + 4 * block, &word, 4);
      const auto result = decode(*compressor, {.payloads = {good, payload}, .n = n});
      ASSERT_FALSE(result.ok());
      EXPECT_THAT(result.error().message, testing::StartsWith("payload 1 of 2: start of block "));
      EXPECT_THAT(result.error().message, testing::HasSubstr("starts ascend from 0 to the count"));
    }
  }
}

TEST_F(TopKPayload, ValuesThatAreNotFiniteAreData) {
  put16(48, 0x7fc0);
  EXPECT_EQ(rejection(), "");
}

TEST_F(TopKPayload, PaddingIsZeroAndIsNotRead) {
  const auto before = decode(*compressor_, {.payloads = {payload_}, .n = kElements}).value();
  for (const auto& [begin, end] : {std::pair{20, 32}, {42, 48}, {58, 64}}) {
    for (int i = begin; i < end; ++i) {
      EXPECT_EQ(payload_[static_cast<size_t>(i)], 0);
      payload_[static_cast<size_t>(i)] = 0xff;
    }
  }
  EXPECT_EQ(decode(*compressor_, {.payloads = {payload_}, .n = kElements}).value(), before);
}

// --- a threshold that is carried -------------------------------------------------------------------------------------

// Steps of training: gradients of the same distribution, with error feedback, and state kept between steps.
struct Training {
  std::unique_ptr<compress::Compressor> compressor;
  size_t n;
  std::vector<float> residual = std::vector<float>(n);
  std::vector<unsigned char> state =
      std::vector<unsigned char>(static_cast<size_t>(compressor->state_bytes(static_cast<int64_t>(n))));
  std::vector<float> p = {};  // of the last step
  Parsed sent = {};

  void step(std::vector<float> gradient) {
    const EncodeCase job{.gradient = std::move(gradient), .residual = residual, .state = state};
    const Encoded encoded = encode(*compressor, job);
    ASSERT_TRUE(encoded.finite);
    p = corrected(job);
    residual = encoded.residual_next;
    state = encoded.state_next;
    sent = parse(encoded.payload);
    ASSERT_TRUE(decode(*compressor, decoding_of(job, {encoded.payload})).ok());
  }
  float threshold() const {
    float value = 0;
    std::memcpy(&value, state.data(), sizeof value);
    return value;
  }
};

void expect_largest_sent(const Training& training) {
  float least = HUGE_VALF, most = 0;
  std::vector<bool> is_sent(training.n);
  for (uint32_t i : training.sent.indices) is_sent[i] = true;
  for (size_t i = 0; i < training.n; ++i) {
    const float size = std::abs(training.p[i]);
    if (is_sent[i]) least = std::min(least, size);
    if (!is_sent[i]) most = std::max(most, size);
  }
  EXPECT_GE(least, most);
}

TEST(ThreshK, BeginsAsTopk) {
  const std::vector<float> gradient = make_data(Data::layered, 50000);
  Training training{.compressor = make("threshk:0.02"), .n = 50000};
  training.step(gradient);
  EXPECT_EQ(training.sent.indices, expected_indices(gradient, 1000));
  EXPECT_GT(training.threshold(), 0);
}

TEST(ThreshK, SendsTheLargestAndNearlyAsManyAsWantedWhileTrainingGoesOn) {
  for (Data kind : {Data::normal, Data::layered}) {
    for (double density : {0.001, 0.01, 0.1}) {
      const auto n = size_t{100000};
      Training training{.compressor = make("threshk:" + std::to_string(density)), .n = n};
      const auto k = static_cast<size_t>(density * static_cast<double>(n) + 0.5);
      // The threshold aims at 15/16 of k, and a count of independent elements varies by its square root.
      const double enough = static_cast<double>(k) * 15 / 16 - 2 * std::sqrt(static_cast<double>(k));
      size_t nearly = 0;
      for (uint64_t step = 0; step < 40; ++step) {
        training.step(make_data(kind, n, 100 + step));
        if (testing::Test::HasFatalFailure()) return;
        EXPECT_LE(training.sent.header.count, k);
        EXPECT_GE(training.sent.header.count, (k + 1) / 2);
        expect_largest_sent(training);
        nearly += static_cast<double>(training.sent.header.count) >= enough ? 1 : 0;
      }
      EXPECT_GE(nearly, 34U) << density;
    }
  }
}

TEST(ThreshK, FollowsGradientsWhoseSizeChanges) {
  constexpr size_t n = 100000;
  Training training{.compressor = make("threshk:0.01"), .n = n};
  for (const float size : {1.0F, 1.0F, 1000.0F, 1000.0F, 0.001F, 0.001F, 1.0F, 1.0F}) {
    training.residual.assign(n, 0);
    std::vector<float> gradient = make_data(Data::normal, n, 3);
    for (float& value : gradient) value *= size;
    training.step(gradient);
    if (testing::Test::HasFatalFailure()) return;
    EXPECT_GE(training.sent.header.count, 500U);
    EXPECT_LE(training.sent.header.count, 1000U);
    expect_largest_sent(training);
  }
}

TEST(ThreshK, DoesNotMindZeros) {
  constexpr size_t n = 20000;
  Training training{.compressor = make("threshk:0.01"), .n = n};
  std::vector<float> few(n);
  few[77] = 2;
  for (int i = 0; i < 3; ++i) {
    training.step(std::vector<float>(n));
    training.step(few);
    EXPECT_EQ(training.threshold(), 0);  // no state to keep
    EXPECT_EQ(training.residual, std::vector<float>(n));
    training.step(make_data(Data::normal, n));
    expect_largest_sent(training);
    training.residual.assign(n, 0);
    training.state.assign(training.state.size(), 0);
  }
}

TEST(ThreshK, ACountAboveTheShareIsRejected) {
  const auto compressor = make("threshk:0.1");
  Payload payload = encode(*compressor, {.gradient = make_data(Data::normal, 100)}).payload;
  const uint32_t count = 11;
  std::memcpy(payload.data() + 12, &count, 4);
  const auto result = decode(*compressor, {.payloads = {payload}, .n = 100});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().message, "payload 0 of 1: count is 0xb, not from 0x0 to 0xa");
}

// u is a mean of gradients, each of which weighs 0.9 of the next; v = u + residual. At the largest elements of v,
// which are sent, u becomes zero and the residual is the loss of rounding.
TEST(Dgc, CorrectsMomentumAndMasksItWhereItIsSent) {
  constexpr size_t n = 30000;
  Training training{.compressor = make("dgc:0.01"), .n = n};
  std::vector<float> momentum(n), residual(n);
  double given = 0, sent = 0, size = 0;  // all of u, and the part of it that was sent
  for (uint64_t step = 0; step < 30; ++step) {
    const std::vector<float> gradient = make_data(Data::layered, n, step);
    training.step(gradient);
    if (testing::Test::HasFatalFailure()) return;
    const double before =
        (1 - std::pow(double{0.9F}, step)) / (1 - double{0.9F});  // the weight of all gradients, where the last one
                                                                  // weighs 1
    const auto decay = static_cast<float>(double{0.9F} * before / (1 + double{0.9F} * before));
    for (size_t i = 0; i < n; ++i) {
      momentum[i] = decay * momentum[i] + (1 - decay) * gradient[i];
      given += momentum[i];
      residual[i] += momentum[i];
      size += std::abs(momentum[i]);
    }
    float least = HUGE_VALF;
    for (size_t s = 0; s < training.sent.indices.size(); ++s) {
      const uint32_t i = training.sent.indices[s];
      least = std::min(least, std::abs(residual[i]));
      momentum[i] = 0;
      residual[i] -= training.sent.values[s];
      sent += training.sent.values[s];
    }
    for (size_t i = 0; i < n; ++i) EXPECT_LE(std::abs(residual[i]), least);
    std::vector<float> kept(n);
    std::memcpy(kept.data(), training.state.data() + 16, 4 * n);
    ASSERT_TRUE(same_bytes(kept, momentum)) << step;
    ASSERT_EQ(training.residual, residual) << step;
  }
  for (float value : residual) sent += value;
  EXPECT_LE(std::abs(sent - given), 1e-6 * size);
}

}  // namespace
}  // namespace gradtune::suites
