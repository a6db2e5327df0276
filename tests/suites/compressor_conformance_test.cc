// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests that every compressor of the table must pass (engine/compress/compressor.h), with its default parameter and
// at both ends of its range. A new row is tested at once; it only needs a reference (reference_compressors.cc).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "engine/compress/calls.h"
#include "tests/suites/compressor_harness.h"
#include "tests/suites/reference_compressors.h"

namespace gradtune::suites {
namespace {

constexpr size_t kSizes[] = {0,   1,   2,    3,    15,   16,   17,    63,    64,    65,           511,
                             512, 513, 1001, 8191, 8192, 8193, 65535, 65536, 65537, (1 << 20) + 7};
constexpr size_t kFewSizes[] = {1, 17, 1000, 70001};
constexpr size_t kMedium = 70001;  // several blocks, not a multiple of anything

std::vector<core::CompressorSpec> specs() {
  std::vector<core::CompressorSpec> all;
  for (const compress::CompressorRow& row : compress::compressor_table()) {
    std::vector<double> parameters = {row.traits.parameter_default, row.traits.parameter_min, row.traits.parameter_max};
    std::sort(parameters.begin(), parameters.end());
    parameters.erase(std::unique(parameters.begin(), parameters.end()), parameters.end());
    for (double parameter : parameters) all.push_back({std::string(row.traits.name), parameter});
  }
  return all;
}

class CompressorConformance : public testing::TestWithParam<core::CompressorSpec> {
 protected:
  const std::unique_ptr<compress::Compressor> compressor_ = std::move(compress::make_compressor(GetParam())).value();

  // A step in the middle of training on three ranks.
  static EncodeCase usual_case(size_t n, Data kind = Data::layered) {
    return {.gradient = make_data(kind, n, 11),
            .residual = make_data(kind, n, 12),
            .scale = 1.0F / 3,
            .error_scale = 3,
            .random = {.seed = 0x123456789abcdef0, .step = 7, .rank = 2, .use = 1},
            .first_element = 1234567891011};
  }

  std::vector<float> decode_one(const Payload& payload, const EncodeCase& job) const {
    return decode(*compressor_, decoding_of(job, {payload})).value();
  }

  // The part of a payload that an encoder writes and exchanges send.
  Payload used_of(const Payload& payload) const {
    const auto used_bytes = compressor_->traits().used_bytes;
    if (used_bytes == nullptr) return payload;
    return {payload.begin(), payload.begin() + used_bytes(std::as_bytes(std::span(payload)))};
  }
};

INSTANTIATE_TEST_SUITE_P(Table, CompressorConformance, testing::ValuesIn(specs()), [](const auto& spec) {
  std::string name = core::to_string(spec.param);
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
});

TEST_P(CompressorConformance, TraitsAndSpecAreThoseOfTheTable) {
  EXPECT_EQ(compressor_->spec(), GetParam());
  EXPECT_EQ(compressor_->traits().name, GetParam().name);
  EXPECT_FALSE(compressor_->traits().summary.empty());
  for (int64_t n : {0, 1, 100, 1 << 20}) {
    for (int round = 0; round < compressor_->traits().rounds; ++round) {
      const int64_t bytes = compressor_->payload_bytes(n, round);
      EXPECT_EQ(bytes, compressor_->traits().payload_bytes(GetParam(), n, round));
      const int64_t unit =
          compressor_->traits().summable ? core::bytes_per_element(compressor_->summing(round).type) : 16;
      EXPECT_EQ(bytes % unit, 0);
    }
  }
}

TEST_P(CompressorConformance, PayloadAndErrorAreThoseOfTheReference) {
  for (size_t n : kSizes) {
    for (Data kind : kAllData) {
      if (n > 100000 && kind != Data::layered) continue;
      SCOPED_TRACE(testing::Message() << n << " elements, data " << static_cast<int>(kind));
      const EncodeCase job = usual_case(n, kind);
      const Encoded encoded = encode(*compressor_, job);
      ASSERT_TRUE(encoded.finite);
      const std::vector<float> p = corrected(job);
      const Reference reference = reference_encode(GetParam(), p, job);
      const std::vector<float> decoded = decode_one(encoded.payload, job);
      size_t wrong_values = 0, wrong_errors = 0;
      for (size_t i = 0; i < n; ++i) {
        const auto is_near = [&](double expected) {
          const double allowed = reference.tolerance * std::abs(expected) + reference.absolute_tolerance;
          return std::abs(decoded[i] - expected) <= allowed;
        };
        wrong_values += !is_near(reference.decoded[i]) && (reference.also.empty() || !is_near(reference.also[i]));
        const double error = job.error_scale * (double{job.scale} * p[i] - decoded[i]);
        const double largest = job.error_scale * std::max<double>(std::abs(job.scale * p[i]), std::abs(decoded[i]));
        wrong_errors += !(std::abs(encoded.residual_next[i] - error) <= 3e-7 * largest);
      }
      EXPECT_EQ(wrong_values, 0U);
      EXPECT_EQ(wrong_errors, 0U);
    }
  }
}

TEST_P(CompressorConformance, WithoutResidualsThePayloadStandsForTheGradient) {
  for (size_t n : kFewSizes) {
    EncodeCase job = usual_case(n);
    job.gradient = corrected(job);
    job.residual.clear();
    job.keep_error = false;
    const Encoded encoded = encode(*compressor_, job);
    EXPECT_TRUE(encoded.finite);
    EXPECT_EQ(encoded.payload, encode(*compressor_, usual_case(n)).payload);
  }
}

TEST_P(CompressorConformance, MemoryBeforeTheCallDoesNotMatter) {
  for (size_t n : kSizes) {
    EncodeCase job = usual_case(n);
    const Encoded once = encode(*compressor_, job);
    job.fill = 0x5a;
    job.misaligned = 6;
    const Encoded again = encode(*compressor_, job);
    const Payload used = used_of(again.payload);
    EXPECT_EQ(used_of(once.payload), used) << n;
    EXPECT_TRUE(std::all_of(again.payload.begin() + static_cast<ptrdiff_t>(used.size()), again.payload.end(),
                            [&](unsigned char byte) { return byte == job.fill; }))
        << n;
    EXPECT_TRUE(same_bytes(once.residual_next, again.residual_next)) << n;
    DecodeCase decoding = decoding_of(job, {again.payload});
    decoding.misaligned = 0;
    EXPECT_TRUE(same_bytes(decode(*compressor_, decoding).value(), decode_one(once.payload, job))) << n;
  }
}

// Large results are written past the caches, in whole lines except at both ends.
TEST_P(CompressorConformance, LargeResultsMayBeginAnywhereInACacheLine) {
  EncodeCase job = usual_case(270001);
  const Encoded once = encode(*compressor_, job);
  const std::vector<float> decoded = decode_one(once.payload, job);
  const std::vector<Payload> many(9, once.payload);  // kernels take some of them, and then others
  const std::vector<float> sum = decode(*compressor_, decoding_of(job, many)).value();
  for (size_t misaligned : {0, 2, 7, 15}) {
    job.misaligned = misaligned;
    const Encoded again = encode(*compressor_, job);
    EXPECT_EQ(once.payload, again.payload) << misaligned;
    EXPECT_TRUE(same_bytes(once.residual_next, again.residual_next)) << misaligned;
    DecodeCase decoding = decoding_of(job, {once.payload});
    decoding.misaligned = misaligned;
    EXPECT_TRUE(same_bytes(decode(*compressor_, decoding).value(), decoded)) << misaligned;
    DecodeCase decoding_many = decoding_of(job, many);
    decoding_many.misaligned = misaligned;
    EXPECT_TRUE(same_bytes(decode(*compressor_, decoding_many).value(), sum)) << misaligned;
  }
}

TEST_P(CompressorConformance, ThreadCountDoesNotMatter) {
  const tbb::global_control four_even_on_fewer_cores(tbb::global_control::max_allowed_parallelism, 4);
  std::vector<std::unique_ptr<compress::HostQueue>> queues;
  for (int threads = 1; threads <= 4; ++threads) {
    queues.push_back(make_thread_queue(threads));
#ifndef __SANITIZE_THREAD__  // ThreadSanitizer cannot see the synchronisation of a oneTBB that was built without it
    queues.push_back(compress::make_arena_queue(threads));
#endif
  }
  for (size_t n : {kMedium, size_t{400003}}) {
    const EncodeCase job = usual_case(n);
    const Encoded serial = encode(*compressor_, job);
    const DecodeCase decoding = decoding_of(job, {serial.payload, serial.payload});
    const std::vector<float> sum = decode(*compressor_, decoding).value();
    for (const auto& queue : queues) {
      const Encoded encoded = encode(*compressor_, job, *queue);
      EXPECT_EQ(encoded.payload, serial.payload) << queue->threads() << " threads";
      EXPECT_TRUE(same_bytes(encoded.residual_next, serial.residual_next)) << queue->threads() << " threads";
      EXPECT_TRUE(same_bytes(decode(*compressor_, decoding, *queue).value(), sum)) << queue->threads() << " threads";
    }
  }
}

TEST_P(CompressorConformance, SimdTargetDoesNotMatter) {
  for (size_t n : {size_t{31}, kMedium, size_t{300001}}) {
    for (Data kind : {Data::layered, Data::ties}) {
      const EncodeCase job = usual_case(n, kind);
      const Encoded best = encode(*compressor_, job);
      const DecodeCase decoding = decoding_of(job, {best.payload, best.payload});
      const std::vector<float> sum = decode(*compressor_, decoding).value();
      for (int64_t target : simd_targets()) {
        const ScopedTarget use(target);
        const Encoded encoded = encode(*compressor_, job);
        EXPECT_EQ(encoded.payload, best.payload) << target_name(target);
        EXPECT_TRUE(same_bytes(encoded.residual_next, best.residual_next)) << target_name(target);
        EXPECT_TRUE(same_bytes(decode(*compressor_, decoding).value(), sum)) << target_name(target);
      }
    }
  }
}

// start + the payloads, where runs of this many are added up first.
std::vector<float> sum_of_runs(const std::vector<std::vector<float>>& payloads, size_t run, std::vector<float> start) {
  for (size_t first = 0; first < payloads.size(); first += run) {
    for (size_t i = 0; i < start.size(); ++i) {
      float sum = payloads[first][i];
      for (size_t p = first + 1; p < std::min(payloads.size(), first + run); ++p) sum += payloads[p][i];
      start[i] += sum;
    }
  }
  return start;
}

// The number of payloads whose values a decoder adds up before it adds them to the others: signs and ternary codes
// share sums by tables (bit_sums-inl.h).
size_t payloads_together(const core::CompressorSpec& spec) {
  for (const char* name : {"efsignsgd", "onebit", "signsgd", "signum"}) {
    if (spec.name == name) return 4;
  }
  return spec.name == "terngrad" || (spec.name == "qsgd" && spec.parameter == 2) ? 2 : 1;
}

TEST_P(CompressorConformance, PayloadsAreSummedInTheOrderGiven) {
  if (compressor_->traits().rounds > 1) GTEST_SKIP() << "later rounds hang on the sums of those before them";
  const size_t run = payloads_together(compressor_->spec());
  for (size_t n : {size_t{1}, size_t{17}, size_t{1000}, kMedium, size_t{300001}}) {
    const std::vector<float> start = make_data(Data::normal, n, 20);
    std::vector<Payload> payloads;
    std::vector<std::vector<float>> values;
    for (size_t count : {3, 7, 8, 13}) {
      while (payloads.size() < count) {
        payloads.push_back(
            encode(*compressor_, {.gradient = make_data(Data::layered, n, payloads.size() + 1)}).payload);
        values.push_back(decode(*compressor_, {.payloads = {payloads.back()}, .n = n}).value());
      }
      const auto sum = decode(*compressor_, {.payloads = payloads, .n = n}).value();
      const auto accumulated = decode(*compressor_, {.payloads = payloads, .n = n, .add_to = start}).value();
      EXPECT_EQ(sum, sum_of_runs(values, run, std::vector<float>(n)));
      EXPECT_EQ(accumulated, sum_of_runs(values, run, start));
    }
  }
}

TEST_P(CompressorConformance, TheErrorCanBeAddedToTheNextResidual) {
  for (size_t n : {size_t{17}, size_t{1000}, kMedium, size_t{300001}}) {
    // A shard of summed gradients that is encoded again on its owner.
    EncodeCase job{.gradient = make_data(Data::layered, n, 5), .scale = 1, .error_scale = 3};
    const Encoded stored = encode(*compressor_, job);
    job.add_to = make_data(Data::normal, n, 6);
    const Encoded added = encode(*compressor_, job);
    EXPECT_EQ(stored.payload, added.payload);
    std::vector<float> expected = job.add_to;
    for (size_t i = 0; i < n; ++i) expected[i] += stored.residual_next[i];
    EXPECT_EQ(added.residual_next, expected);
  }
}

// As on ranks that encode the same sum as another one, which keeps the error.
TEST_P(CompressorConformance, AnErrorThatIsNotKeptIsNotAdded) {
  EncodeCase job{.gradient = make_data(Data::layered, kMedium, 5), .scale = 1, .error_scale = 3};
  const Encoded kept = encode(*compressor_, job);
  job.add_to = make_data(Data::normal, kMedium, 6);
  job.keep_error = false;
  EXPECT_EQ(encode(*compressor_, job).payload, kept.payload);
}

// The draw of an element depends on seed, step, rank, use and its position, and on nothing else.
TEST_P(CompressorConformance, DrawsAreFunctionsOfPositionAndStep) {
  constexpr size_t n = 65536 + 1000, half = 65536;  // a multiple of every block
  const EncodeCase job = usual_case(n);
  const Draws draws = reference_encode(GetParam(), {}, job).draws;
  const Payload payload = encode(*compressor_, job).payload;
  const auto differs = [&](auto change) {
    EncodeCase other = job;
    change(other);
    return encode(*compressor_, other).payload != payload;
  };
  const bool random = draws != Draws::none;
  EXPECT_EQ(differs([](EncodeCase& other) { other.random.seed ^= uint64_t{1} << 40; }), random);
  EXPECT_EQ(differs([](EncodeCase& other) { ++other.random.step; }), random);
  EXPECT_EQ(differs([](EncodeCase& other) { ++other.random.rank; }), draws == Draws::own_by_element);
  EXPECT_EQ(differs([](EncodeCase& other) { ++other.random.use; }), random);
  EXPECT_EQ(differs([](EncodeCase& other) { ++other.first_element; }), random);
  if (draws != Draws::own_by_element) return;

  EncodeCase part = job;
  part.gradient.erase(part.gradient.begin(), part.gradient.begin() + half);
  part.residual.erase(part.residual.begin(), part.residual.begin() + half);
  part.first_element += half;
  const std::vector<float> whole = decode_one(payload, job);
  EXPECT_EQ(decode_one(encode(*compressor_, part).payload, part),
            std::vector<float>(whole.begin() + half, whole.end()));
}

// Errors of many steps, summed with several weights, are as small as their own variance predicts.
TEST_P(CompressorConformance, RandomOnesAreUnbiased) {
  constexpr size_t n = 640;
  constexpr uint32_t kSteps = 3000;
  EncodeCase job = usual_case(n);
  if (!reference_encode(GetParam(), {}, job).unbiased) return;
  const std::vector<float> p = corrected(job);
  std::vector<double> sum(n), squares(n);
  for (job.random.step = 0; job.random.step < kSteps; ++job.random.step) {
    const std::vector<float> decoded = decode_one(encode(*compressor_, job).payload, job);
    for (size_t i = 0; i < n; ++i) {
      const double error = double{decoded[i]} - double{job.scale} * p[i];
      sum[i] += error;
      squares[i] += error * error;
    }
  }
  double (*const weights[])(double) = {[](double) { return 1.0; }, [](double x) { return x < 0 ? -1.0 : 1.0; },
                                       [](double x) { return x; }};
  for (const auto& weight : weights) {
    double bias = 0, variance = 0;
    for (size_t i = 0; i < n; ++i) {
      bias += weight(p[i]) * sum[i];
      variance += weight(p[i]) * weight(p[i]) * (squares[i] - sum[i] * sum[i] / kSteps);
    }
    EXPECT_GT(variance, 0);
    EXPECT_LE(std::abs(bias), 4 * std::sqrt(variance));
  }
}

// Elements 64 apart may share random bits (random-inl.h). If they were rounded alike, sums of errors would not
// average out.
TEST_P(CompressorConformance, ErrorsOfElementsAreNotCorrelated) {
  if (!compressor_->traits().host.rounds_at_random) return;
  constexpr size_t n = 640, kApart = 64, kPairs = n - kApart;
  constexpr uint32_t kSteps = 3000;
  EncodeCase job = usual_case(n, Data::normal);
  job.random.seed = 77;
  const std::vector<float> p = corrected(job);
  std::vector<double> sums(n), products(kPairs), squares(n);  // sums of errors; thc's errors have a mean, from clipping
  for (job.random.step = 0; job.random.step < kSteps; ++job.random.step) {
    std::vector<float> errors = decode_one(encode(*compressor_, job).payload, job);
    for (size_t i = 0; i < n; ++i) errors[i] -= job.scale * p[i];
    for (size_t i = 0; i < kPairs; ++i) products[i] += double{errors[i]} * errors[i + kApart];
    for (size_t i = 0; i < n; ++i) {
      sums[i] += errors[i];
      squares[i] += double{errors[i]} * errors[i];
    }
  }
  const auto variance = [&](size_t i) { return squares[i] - sums[i] * sums[i] / kSteps; };
  double mean = 0;
  for (size_t i = 0; i < kPairs; ++i) {
    const double product = products[i] - sums[i] * sums[i + kApart] / kSteps;
    if (variance(i) <= 0 || variance(i + kApart) <= 0) continue;
    const double correlation = product / std::sqrt(variance(i) * variance(i + kApart));
    EXPECT_LE(std::abs(correlation), 6 / std::sqrt(kSteps)) << "of elements " << i << " and " << i + kApart;
    mean += correlation / kPairs;
  }
  EXPECT_LE(std::abs(mean), 0.01);
}

// The sent and the remaining values add up to the given ones, step after step.
TEST_P(CompressorConformance, ErrorFeedbackLosesNothing) {
  constexpr int kRanks = 3, kSteps = 20;
  constexpr size_t n = 5003;
  std::vector<double> given(n), sent(n), size(n);
  std::vector<float> residual(n);
  for (uint64_t step = 0; step < kSteps; ++step) {
    const EncodeCase job{.gradient = make_data(Data::layered, n, step),
                         .residual = residual,
                         .scale = 1.0F / kRanks,
                         .error_scale = kRanks};
    const Encoded encoded = encode(*compressor_, job);
    ASSERT_TRUE(encoded.finite);
    const std::vector<float> decoded = decode_one(encoded.payload, job);
    for (size_t i = 0; i < n; ++i) {
      given[i] += job.gradient[i];
      size[i] += std::abs(double{job.gradient[i]}) + std::abs(double{residual[i]});
      sent[i] += kRanks * double{decoded[i]};
    }
    residual = encoded.residual_next;
  }
  double difference = 0, scale = 0;
  for (size_t i = 0; i < n; ++i) {
    difference += std::abs(sent[i] + residual[i] - given[i]);
    scale += size[i];
  }
  EXPECT_LE(difference, 1e-6 * scale);
}

TEST_P(CompressorConformance, ZerosStayZeros) {
  for (size_t n : kFewSizes) {
    const EncodeCase job{.gradient = std::vector<float>(n), .residual = std::vector<float>(n)};
    const Encoded encoded = encode(*compressor_, job);
    EXPECT_TRUE(encoded.finite);
    if (reference_encode(GetParam(), {}, job).sizeless) continue;
    EXPECT_THAT(encoded.residual_next, testing::Each(0.0F));
    EXPECT_THAT(decode_one(encoded.payload, job), testing::Each(0.0F));
  }
}

TEST_P(CompressorConformance, ANonFiniteElementAnywhereIsSeen) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (size_t n : kFewSizes) {
    for (size_t position : {size_t{0}, n / 2, n - 1}) {
      for (float value : {nan, -nan, infinity, -infinity}) {
        EncodeCase job = usual_case(n);
        job.gradient[position] = value;
        const Encoded encoded = encode(*compressor_, job);
        EXPECT_FALSE(encoded.finite) << value << " at " << position << " of " << n;
        // Peers learn of it in other ways, and until then they decode.
        EXPECT_TRUE(decode(*compressor_, decoding_of(job, {encoded.payload})).ok());
        std::swap(job.gradient, job.residual);
        EXPECT_FALSE(encode(*compressor_, job).finite) << value << " at " << position << " of " << n;
      }
    }
  }
}

// The promise of the trait carries_nonfinite: for any place and number of payloads, values that are not finite come
// out as in the sum of the decoded payloads, and no other element changes.
TEST_P(CompressorConformance, WhatIsNotFiniteIsCarriedByThoseThatSaySo) {
  const core::CompressorTraits& traits = compressor_->traits();
  EXPECT_FALSE(traits.carries_nonfinite && (traits.error_feedback || traits.rounds > 1)) << "they keep something";
  if (!traits.carries_nonfinite) return;
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const float bad[] = {infinity, nan, -infinity, -nan};
  for (size_t n : kFewSizes) {
    for (size_t count : {1, 2, 3, 9}) {
      for (size_t position : {size_t{0}, n / 3, n / 2, n - 1}) {
        for (size_t first = 0; first < std::size(bad); ++first) {
          SCOPED_TRACE(testing::Message() << n << " elements, " << count << " payloads, at " << position);
          std::vector<Payload> payloads, calm;
          std::vector<float> expected(1);
          for (size_t p = 0; p < count; ++p) {
            EncodeCase job = usual_case(n);
            job.gradient = make_data(Data::layered, n, 30 + p);
            job.residual.clear();
            job.keep_error = false;
            calm.push_back(encode(*compressor_, job).payload);
            // In the last payload, in some cases in the first one as well, so that infinities may cancel.
            if (p + 1 == count || (p == 0 && position != n / 2))
              job.gradient[position] = bad[(first + p) % std::size(bad)];
            payloads.push_back(encode(*compressor_, job).payload);
            const float value = decode_one(payloads.back(), job)[position];
            if (p + 1 == count) {
              const float given = job.gradient[position];
              EXPECT_TRUE(std::isnan(given) ? std::isnan(value) : value == given) << value;
            }
            expected[0] = p == 0 ? value : expected[0] + value;
          }
          const auto sum = decode(*compressor_, {.payloads = payloads, .n = n}).value();
          std::vector<float> others = decode(*compressor_, {.payloads = calm, .n = n}).value();
          EXPECT_TRUE(std::isnan(expected[0]) ? std::isnan(sum[position]) : sum[position] == expected[0]);
          EXPECT_FALSE(std::isfinite(sum[position]));
          others[position] = sum[position];
          EXPECT_TRUE(same_bytes(sum, others));
        }
      }
    }
  }
}

TEST_P(CompressorConformance, AProductWithScaleThatOverflowsIsSeen) {
  EncodeCase job = usual_case(1000);
  job.gradient[500] = 3e38F;
  job.scale = 2;
  EXPECT_FALSE(encode(*compressor_, job).finite);
}

TEST_P(CompressorConformance, SubnormalNumbersAndNegativeZerosAreOrdinary) {
  for (float value : {-0.0F, 0x1p-149F, -0x1p-149F, 0x1p-127F, 0x1p-126F}) {
    for (size_t position : {0, 500, 999}) {
      std::vector<float> gradient(1000);
      gradient[position] = value;
      const EncodeCase job{.gradient = gradient};
      const Encoded encoded = encode(*compressor_, job);
      EXPECT_TRUE(encoded.finite);
      const Reference reference = reference_encode(GetParam(), {}, job);
      if (reference.sizeless) continue;
      const double most = std::abs(double{value}) * (1 + reference.tolerance);
      for (float decoded : decode_one(encoded.payload, job)) EXPECT_LE(std::abs(double{decoded}), most);
    }
  }
}

TEST_P(CompressorConformance, APayloadOfAnotherSizeIsRejected) {
  constexpr size_t n = 37;
  const Payload payload = encode(*compressor_, usual_case(n)).payload;
  for (size_t bytes = 0; bytes <= payload.size() + 16; ++bytes) {
    if (bytes == payload.size()) continue;
    Payload other = payload;
    other.resize(bytes);
    const auto result = decode(*compressor_, {.payloads = {payload, other}, .n = n});
    ASSERT_FALSE(result.ok()) << bytes;
    EXPECT_EQ(result.error().code, core::Error::Code::corrupt);
    EXPECT_THAT(result.error().message, testing::StartsWith("payload 1 of 2: size is "));
  }
}

TEST_P(CompressorConformance, AFlippedBitGivesAValueOrANamedRejection) {
  for (size_t n : {1, 37, 100}) {
    const Payload payload = encode(*compressor_, usual_case(n)).payload;
    for (size_t bit = 0; bit < payload.size() * 8; ++bit) {
      Payload flipped = payload;
      flipped[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
      const auto result = decode(*compressor_, {.payloads = {payload, payload, flipped}, .n = n});
      if (result.ok()) continue;
      EXPECT_EQ(result.error().code, core::Error::Code::corrupt);
      EXPECT_THAT(result.error().message, testing::MatchesRegex("payload 2 of 3: [a-z 0-9]+ is .*"));
    }
  }
}

TEST_P(CompressorConformance, RandomBytesGiveAValueOrANamedRejection) {
  constexpr size_t n = 100;
  const Payload good = encode(*compressor_, usual_case(n)).payload;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const std::vector<float> noise = make_data(Data::layered, good.size() / sizeof(float), seed);
    Payload payload = good;
    const size_t header = compressor_->traits().summable ? 0 : 16;
    std::memcpy(payload.data() + header, noise.data(), payload.size() - header);
    const auto result = decode(*compressor_, {.payloads = {payload}, .n = n});
    if (result.ok()) continue;
    EXPECT_THAT(result.error().message, testing::StartsWith("payload 0 of 1: "));
  }
}

TEST_P(CompressorConformance, ABrokenCallIsAProgrammersError) {
  std::vector<float> gradient(100);
  const int rounds = compressor_->traits().rounds;
  Guarded<std::byte> payload(static_cast<size_t>(compressor_->payload_bytes(100, rounds - 1)));
  Guarded<std::byte> between(static_cast<size_t>(compressor_->round_bytes(100)), 0, 0);
  Guarded<std::byte> scratch(static_cast<size_t>(compressor_->scratch_bytes(100)));
  const auto queue = compress::make_serial_queue();
  const compress::Encode good{.gradient = gradient,
                              .work = {.round = rounds - 1, .round_memory = between.data()},
                              .payload = payload.span(),
                              .scratch = scratch.span()};
  EXPECT_TRUE(compress::encode_now(*compressor_, good, *queue));
  compress::Encode job = good;
  job.payload = job.payload.first(job.payload.size() - 1);
  EXPECT_THROW((void)compress::encode_now(*compressor_, job, *queue), core::ProgramError);
  job = good;
  job.work.round = rounds;
  EXPECT_THROW((void)compress::encode_now(*compressor_, job, *queue), core::ProgramError);
  if (scratch.span().empty()) return;
  job = good;
  job.scratch = job.scratch.first(job.scratch.size() - 1);
  EXPECT_THROW((void)compress::encode_now(*compressor_, job, *queue), core::ProgramError);
}

}  // namespace
}  // namespace gradtune::suites
