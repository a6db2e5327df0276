// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Every compressor on a device (tested_device.h) gives the same bytes as the one of the host: payloads, residuals,
// state, verdicts and sums, in every schedule of threads. So it has all properties that the conformance suite
// demands of the host's. DEVICE_TEST=long in the environment tests more parameters and sizes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "engine/compress/codes/int_packed_layout.h"
#include "engine/compress/cuda/table.h"
#include "engine/compress/powersgd/powersgd_layout.h"
#include "engine/compress/sparse/sparse_layout.h"
#include "engine/core/rng.h"
#include "tests/suites/compressor_harness.h"
#include "tests/suites/tested_device.h"

namespace gradtune::suites {
namespace {

bool is_long() {
  const char* const wanted = std::getenv("DEVICE_TEST");
  return wanted != nullptr && std::string_view(wanted) == "long";
}

std::vector<size_t> sizes() {
  if (!is_long()) return {0, 3, 65, 100, 1027, 8200};
  return {0, 1, 2, 3, 15, 17, 63, 64, 65, 127, 128, 513, 1001, 1027, 2049, 8191, 8200, 16384, 40000, 300001};
}

// The default and both ends of the range. The long test, and int8 always, add the other values that policies choose
// from, and values that no kernel is specialised for.
std::vector<core::CompressorSpec> specs() {
  std::vector<core::CompressorSpec> all;
  for (const compress::CompressorRow& row : compress::compressor_table()) {
    std::vector<double> parameters = {row.traits.parameter_default, row.traits.parameter_min, row.traits.parameter_max};
    if (is_long() || row.traits.name == "int8") {
      parameters.insert(parameters.end(), row.traits.parameter_search.begin(), row.traits.parameter_search.end());
      if (row.traits.parameter_name == "block") parameters.push_back(row.traits.parameter_min * 3);
    }
    if (row.traits.name == "qsgd") parameters.insert(parameters.end(), {2, 7});
    if (row.traits.name == "powersgd") parameters.push_back(4);  // the default does not make these matrices smaller
    std::ranges::sort(parameters);
    parameters.erase(std::unique(parameters.begin(), parameters.end()), parameters.end());
    for (double parameter : parameters) all.push_back({std::string(row.traits.name), parameter});
  }
  return all;
}

// Arithmetic on a GPU does not keep the bits of a NaN.
std::vector<float> with_nans_alike(std::vector<float> values) {
  std::ranges::replace_if(
      values, [](float value) { return std::isnan(value); }, std::numeric_limits<float>::quiet_NaN());
  return values;
}

void expect_same_decode(const compress::Compressor& device, const compress::Compressor& host, const DecodeCase& job) {
  const auto from_host = decode(host, job), from_device = decode(device, job);
  ASSERT_EQ(from_device.ok(), from_host.ok());
  if (from_host.ok()) {
    EXPECT_TRUE(same_bytes(with_nans_alike(from_device.value()), with_nans_alike(from_host.value())));
  } else {
    EXPECT_EQ(from_device.error().message, from_host.error().message);
  }
}

class DeviceEqualsHost : public testing::TestWithParam<core::CompressorSpec> {
 protected:
  void TearDown() override { use_schedule(Schedule::forward); }

  const std::unique_ptr<compress::Compressor> host_ = std::move(compress::make_compressor(GetParam())).value();
  const std::unique_ptr<compress::Compressor> device_ =
      on_device(std::move(compress::cuda::make_device_compressor(GetParam())).value());

  static EncodeCase usual_case(size_t n, Data kind = Data::layered) {
    return {.gradient = make_data(kind, n, 11),
            .residual = make_data(kind, n, 12),
            .scale = 1.0F / 3,
            .error_scale = 3,
            .random = {.seed = 0x123456789abcdef0, .step = 7, .rank = 2, .use = 1},
            .first_element = 1234567891012};
  }

  static Payload used_of(const compress::Compressor& compressor, const Payload& payload) {
    const auto used = compressor.traits().used_bytes;
    if (used == nullptr) return payload;
    return {payload.begin(), payload.begin() + used(std::as_bytes(std::span(payload)))};
  }

  // Encodes on both, and returns the host's result. After a verdict of not finite the rest is garbage.
  Encoded encode_on_both(const EncodeCase& job) const {
    Encoded host = encode(*host_, job);
    const Encoded device = encode(*device_, job);
    EXPECT_EQ(device.finite, host.finite);
    if (!host.finite) {
      EXPECT_TRUE(decode(*host_, decoding_of(job, {device.payload})).ok());
      return host;
    }
    EXPECT_EQ(used_of(*device_, device.payload), used_of(*host_, host.payload));
    EXPECT_TRUE(same_bytes(device.residual_next, host.residual_next));
    EXPECT_EQ(device.state_next, host.state_next);
    return host;
  }

  void decode_on_both(const DecodeCase& job) const { expect_same_decode(*device_, *host_, job); }
};

INSTANTIATE_TEST_SUITE_P(Table, DeviceEqualsHost, testing::ValuesIn(specs()), [](const auto& spec) {
  std::string name = core::to_string(spec.param);
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
});

TEST_P(DeviceEqualsHost, InTheMiddleOfTraining) {
  for (size_t n : sizes()) {
    for (Data kind : {Data::layered, Data::ties, Data::sparse, Data::zero}) {
      if (kind != Data::layered && n != 1027 && n != 8200) continue;
      for (Schedule schedule : {Schedule::forward, Schedule::reverse, Schedule::shuffled}) {
        if (schedule != Schedule::forward && n != 1027 && n != 8200) continue;
        SCOPED_TRACE(testing::Message() << n << " elements, data " << static_cast<int>(kind) << ", schedule "
                                        << static_cast<int>(schedule));
        use_schedule(schedule, n);
        EncodeCase job = usual_case(n, kind);
        job.misaligned = schedule == Schedule::forward ? n % 3 * 4 : 1;  // mostly to 16 bytes
        const Encoded encoded = encode_on_both(job);
        decode_on_both(decoding_of(job, {encoded.payload}));
      }
    }
  }
}

// Residuals lie at any address in their arenas, even if the gradient is an aligned copy.
TEST_P(DeviceEqualsHost, ArraysOfWhichSomeAreAligned) {
  struct Case {
    size_t gradient, residual_further, next_further;
  };
  for (const Case& aligned : {Case{0, 1, 0}, Case{0, 0, 2}, Case{0, 3, 3}, Case{3, 1, 1}}) {
    for (const bool adds : {false, true}) {
      EncodeCase job = usual_case(8200);
      job.misaligned = aligned.gradient;
      job.residual_further = aligned.residual_further;
      job.next_further = aligned.next_further;
      if (adds) {
        job.residual.clear();
        job.add_to = make_data(Data::normal, 8200, 6);
      }
      (void)encode_on_both(job);
    }
  }
}

TEST_P(DeviceEqualsHost, WithoutResidualsAndWhereErrorsAreAdded) {
  for (size_t n : {size_t{70}, size_t{1200}, size_t{9000}}) {
    SCOPED_TRACE(n);
    EncodeCase job = usual_case(n);
    job.misaligned = 0;
    job.residual.clear();
    (void)encode_on_both(job);
    job.keep_error = false;
    (void)encode_on_both(job);
    job = {.gradient = make_data(Data::layered, n, 5),
           .add_to = make_data(Data::normal, n, 6),
           .scale = 1,
           .error_scale = 3,
           .first_element = 77};
    for (size_t misaligned : {0, 3}) {
      job.misaligned = misaligned;
      (void)encode_on_both(job);
    }
  }
}

TEST_P(DeviceEqualsHost, SumsOfManyPayloads) {
  const size_t n = 1300;
  std::vector<Payload> payloads;
  for (uint64_t seed = 1; seed <= 67; ++seed) {
    EncodeCase job = usual_case(n);
    job.gradient = make_data(Data::layered, n, seed);
    payloads.push_back(encode(*host_, job).payload);
  }
  for (size_t count : {1, 2, 3, 5, 6, 8, 64, 67}) {
    for (bool accumulate : {false, true}) {
      for (size_t misaligned : {0, 3}) {
        if (count > 8 && misaligned != count % 2 * 3) continue;
        SCOPED_TRACE(testing::Message() << count << " payloads, accumulate " << accumulate << ", misaligned by "
                                        << misaligned);
        DecodeCase job =
            decoding_of(usual_case(n), {payloads.begin(), payloads.begin() + static_cast<ptrdiff_t>(count)});
        if (accumulate) job.add_to = make_data(Data::normal, n, 20);
        job.misaligned = misaligned;
        decode_on_both(job);
      }
    }
  }
}

TEST_P(DeviceEqualsHost, StatesOfManySteps) {
  const size_t n = 3000;
  const auto bytes = static_cast<size_t>(host_->state_bytes({static_cast<int64_t>(n), matrices_among(*host_, n)}));
  if (bytes == 0) return;
  EncodeCase job = usual_case(n);
  job.state.assign(bytes, 0);
  for (uint64_t step = 0; step < (is_long() ? 12 : 4); ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    // Steps that equal the one before, and others.
    job.gradient = make_data(Data::layered, n, 100 + step);
    if (step % 5 == 4) {
      for (float& value : job.gradient) value *= 0.01F;
    }
    job.misaligned = step % 2 * 4;
    const Encoded encoded = encode_on_both(job);
    job.residual = encoded.residual_next;
    job.state = encoded.state_next;
  }
}

TEST_P(DeviceEqualsHost, WhatIsNotFiniteIsTold) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (size_t n : {size_t{1}, size_t{100}, size_t{9000}}) {
    for (size_t position : {size_t{0}, n / 2, n - 1}) {
      for (float value : {nan, -infinity}) {
        SCOPED_TRACE(testing::Message() << value << " at " << position << " of " << n);
        EncodeCase job = usual_case(n);
        job.misaligned = 0;
        job.gradient[position] = value;
        (void)encode_on_both(job);
      }
    }
  }
  for (float value : {3e38F, 65520.0F, std::nextafter(65520.0F, 0.0F), 0x1.fep127F, 1.7e38F, 1e36F}) {
    for (float scale : {1.0F, 2.0F, 0.5F}) {
      for (int summed : {1, 3}) {
        EncodeCase job = usual_case(200);
        job.gradient[100] = value;
        job.residual[100] = 0;  // so that the largest number that may be sent occurs
        job.scale = scale;
        job.error_scale = 1 / scale;
        job.summed = summed;
        SCOPED_TRACE(testing::Message() << value << " times " << scale << ", summed " << summed);
        (void)encode_on_both(job);
      }
    }
  }
}

TEST_P(DeviceEqualsHost, NumbersAtTheEndsOfWhatThereIs) {
  EncodeCase job = usual_case(1100);
  for (size_t i = 0; i < job.gradient.size(); ++i) {
    const float extremes[] = {-0.0F, 0x1p-149F, -0x1p-149F, 0x1p-127F, 0x1p-126F, 1.0F, -1.0F, 0x1p-30F};
    job.gradient[i] = extremes[(i * 7 + i / 64) % std::size(extremes)] * (i < 512   ? 1.0F
                                                                          : i < 768 ? 0x1p-60F
                                                                                    : 0x1p-130F);
    job.residual[i] = i % 3 == 0 ? -0.0F : 0.0F;
  }
  for (float scale : {1.0F, 1.0F / 3}) {
    job.scale = scale;
    job.error_scale = 1 / scale;
    const Encoded encoded = encode_on_both(job);
    decode_on_both(decoding_of(job, {encoded.payload, encoded.payload}));
  }
}

TEST_P(DeviceEqualsHost, SquaresThatSinglePrecisionHasNoRoomFor) {
  for (float magnitude : {0x1p-70F, 0x1p-42F, 0x1p58F, 0x1p64F}) {
    SCOPED_TRACE(magnitude);
    EncodeCase job{.gradient = make_data(Data::normal, 1100), .random = {.seed = 5, .step = 1}};
    for (float& value : job.gradient) value *= magnitude;
    const Encoded encoded = encode_on_both(job);
    decode_on_both(decoding_of(job, {encoded.payload}));
  }
}

// The sum of squares is (1 + 2^-24)^2 plus two units in the last place of double precision. Its root rounds up in
// single precision. If the last two elements are added to the first one at a time, not together, the sum is one unit
// less and its root rounds down.
TEST_P(DeviceEqualsHost, NormsThatHangOnTheOrderOfSums) {
  EncodeCase job{.gradient = std::vector<float>(96)};
  const float front[] = {1, 0x1p-12F, 0x1p-12F, 0x1p-24F, 0x1p-26F};
  std::ranges::copy(front, job.gradient.begin());
  job.gradient[80] = job.gradient[88] = 0x1.5p-27F;
  (void)encode_on_both(job);
}

// The bad payload is found, with the same name.
TEST_P(DeviceEqualsHost, PayloadsThatNoEncoderSends) {
  for (size_t n : {size_t{1}, size_t{37}, size_t{300}}) {
    if (n == 300 && !is_long()) continue;
    const EncodeCase job = usual_case(n);
    const Payload payload = encode(*host_, job).payload;
    const size_t step = payload.size() * 8 / (is_long() ? 150 : 40) + 1;
    for (size_t bit = 0; bit < payload.size() * 8; bit += bit < 256 ? 1 : step) {
      SCOPED_TRACE(testing::Message() << n << " elements, bit " << bit);
      Payload flipped = payload;
      flipped[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
      DecodeCase decoding = decoding_of(job, {payload, payload, flipped});
      decoding.misaligned = bit % 2 * 3;
      decode_on_both(decoding);
    }
    Payload noise = payload;
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const std::vector<float> numbers = make_data(Data::layered, noise.size() / sizeof(float), seed);
      const size_t header = host_->traits().summable ? 0 : 16;
      const size_t whole = numbers.size() * sizeof(float);
      if (whole > header) std::memcpy(noise.data() + header, numbers.data(), whole - header);
      SCOPED_TRACE(testing::Message() << n << " elements, noise " << seed);
      decode_on_both(decoding_of(job, {payload, noise}));
      DecodeCase both = decoding_of(job, {payload, noise, noise});
      both.misaligned = 0;
      decode_on_both(both);
    }
    if (payload.size() >= 20) {  // the first of many scales
      Payload infinite = payload;
      const float infinity = std::numeric_limits<float>::infinity();
      std::memcpy(infinite.data() + 16, &infinity, sizeof infinity);
      decode_on_both(decoding_of(job, {payload, infinite}));
    }
    Payload shorter = payload;
    shorter.resize(payload.size() - 1);
    decode_on_both(decoding_of(job, {payload, shorter}));
  }
}

// A matrix in which that share of rows is not zero; some rows are not zero in a single element.
std::vector<float> rows_that_are_there(int64_t rows, int64_t width, double share, uint64_t seed) {
  std::vector<float> values = make_data(Data::layered, static_cast<size_t>(rows * width), seed);
  core::Rng rng(seed);
  for (int64_t row = 0; row < rows; ++row) {
    const bool is_there = rng.uniform() < share;
    const int64_t kept =
        is_there && rng.below(3) == 0 ? static_cast<int64_t>(rng.below(static_cast<uint64_t>(width))) : -1;
    for (int64_t i = 0; i < width; ++i) {
      float& value = values[static_cast<size_t>(row * width + i)];
      if (!is_there || (kept >= 0 && i != kept)) value = 0;
      if (i == kept && row % 2 == 0) value = -0.0F;
    }
  }
  return values;
}

// Tests compressors that leave out zeros, in units of all widths and in each form of a payload.
TEST_P(DeviceEqualsHost, RowsThatAreZeroOrNotTogether) {
  if (!host_->traits().takes_rows) return;
  for (const int64_t width : {1, 2, 3, 7, 16, 31, 32, 48, 96, 257, 1024, 3000, 5000, 12288}) {
    const int64_t rows = width < 8 ? 9000 / width + 1 : std::max<int64_t>(3, (is_long() ? 90000 : 20000) / width);
    for (const double share : {0.0, 0.01, 0.3, 1.0}) {
      SCOPED_TRACE(testing::Message() << rows << " rows of " << width << ", a share of " << share << " is there");
      use_schedule(share == 0.3 ? Schedule::shuffled : share == 1 ? Schedule::reverse : Schedule::forward, 3);
      EncodeCase job{
          .gradient = rows_that_are_there(rows, width, share, 7), .scale = 0.5F, .row = width, .misaligned = 0};
      const Encoded one = encode_on_both(job);
      job.gradient = rows_that_are_there(rows, width, share / 2, 8);
      job.residual = rows_that_are_there(rows, width, share / 2, 9);
      job.misaligned = 3;
      const Encoded other = encode_on_both(job);
      DecodeCase decoding = decoding_of(job, {one.payload, other.payload, one.payload});
      decode_on_both(decoding);
      decoding.add_to = rows_that_are_there(rows, width, 0.5, 10);
      for (size_t i = 0; i < decoding.add_to.size(); i += 1 + i % 5) decoding.add_to[i] = -0.0F;
      decode_on_both(decoding);
      if (share < 1) continue;
      Payload full = one.payload;  // payload of all values, with nothing left out
      for (int64_t row = 0; row < rows; row += 3) {
        std::fill_n(full.begin() + 32 + row * width * 4, width * 4, static_cast<unsigned char>(0));
      }
      decoding.payloads = {full, full};
      decode_on_both(decoding);
    }
  }
}

// Only the last unit's own elements are sent if it is shorter than others.
TEST_P(DeviceEqualsHost, ALastUnitThatIsShorter) {
  if (!host_->traits().takes_rows) return;
  for (const size_t n : {size_t{513}, size_t{6000}, size_t{70000}}) {
    for (const bool is_there : {false, true}) {
      SCOPED_TRACE(testing::Message() << n << " elements, the last one is there: " << is_there);
      EncodeCase job{.gradient = std::vector<float>(n), .scale = 2};
      for (size_t i = 0; i + 300 < n; i += 2000) job.gradient[i] = 1.5F;
      if (is_there) job.gradient.back() = 3;
      const Encoded encoded = encode_on_both(job);
      decode_on_both(decoding_of(job, {encoded.payload, encoded.payload}));
    }
  }
}

// Inconsistent indices of sparse payloads are rejected, in tiles other than the first as well.
TEST_P(DeviceEqualsHost, AnIndexThatNoEncoderSends) {
  if (!host_->traits().takes_rows) return;
  for (const int64_t width : {1, 6, 100}) {
    const int64_t rows = 2500 * 6 / width / 2 * 2 + 1;
    for (const double share : {0.005, 0.2}) {
      EncodeCase job{.gradient = rows_that_are_there(rows, width, share, 5), .row = width};
      job.gradient.back() = 1;
      const Payload payload = encode(*host_, job).payload;
      const size_t used = used_of(*host_, payload).size();
      core::Rng rng(static_cast<uint64_t>(width));
      for (int i = 0; i < (is_long() ? 400 : 60); ++i) {
        Payload flipped = payload;
        const size_t byte = i < 32 ? static_cast<size_t>(i) : 32 + rng.below(std::min<size_t>(used - 32, 3000));
        flipped[byte] ^= static_cast<unsigned char>(1U << rng.below(8));
        if (i % 4 == 3 && used > 44) std::swap_ranges(flipped.begin() + 32, flipped.begin() + 36, flipped.begin() + 40);
        SCOPED_TRACE(testing::Message() << rows << " rows of " << width << ", byte " << byte << " of payload " << i);
        decode_on_both(decoding_of(job, {payload, flipped}));
      }
      const compress::SparseShape shape(rows * width, host_->spec().name == "coo" ? 1 : width);
      const bool has_bits = payload[20] == static_cast<unsigned char>(compress::SparseForm::bitmap);
      if (!has_bits || host_->spec().name == "blocks") continue;
      // Claims four units more than exist at every place.
      Payload more = payload;
      const auto add = [&](int64_t byte, int64_t value) {
        uint32_t number;
        std::memcpy(&number, more.data() + byte, sizeof number);
        number += static_cast<uint32_t>(value);
        std::memcpy(more.data() + byte, &number, sizeof number);
      };
      for (int64_t run = 0; run < shape.runs(); ++run) add(32 + 4 * run, 4);
      add(16, 4);
      add(12, shape.width);
      decode_on_both(decoding_of(job, {payload, more}));
    }
  }
}

// Several small buckets in one launch give the same bytes as one by one.
TEST_P(DeviceEqualsHost, SeveralBucketsAtOnce) {
  constexpr size_t kBuckets = 30;
  const auto device = std::move(compress::cuda::make_device_compressor(GetParam())).value();
  if (device->traits().rounds > 1) return;
  compress::Queue& queue = device_queue();
  std::vector<std::vector<float>> gradients, next(kBuckets), out(kBuckets);
  std::vector<std::unique_ptr<Guarded<std::byte>>> payloads, scratch;
  std::vector<compress::Verdict> verdicts(2 * kBuckets);
  std::vector<compress::Encode> encodes;
  for (size_t b = 0; b < kBuckets; ++b) {
    const size_t n = 10 + 97 * b % 900;
    gradients.push_back(make_data(Data::layered, n, b));
    next[b].resize(n);
    out[b].resize(n);
    const auto elements = static_cast<int64_t>(n);
    payloads.push_back(std::make_unique<Guarded<std::byte>>(static_cast<size_t>(device->payload_bytes(elements))));
    scratch.push_back(std::make_unique<Guarded<std::byte>>(static_cast<size_t>(device->scratch_bytes(elements))));
    encodes.push_back({.gradient = gradients[b],
                       .residual_next = next[b].data(),
                       .payload = payloads[b]->span(),
                       .scratch = scratch[b]->span(),
                       .verdict = &verdicts[b]});
  }
  device->encode_all(encodes, queue);
  finish(queue);
  std::vector<std::span<const std::byte>> spans;
  for (auto& payload : payloads) spans.emplace_back(payload->span());
  std::vector<compress::Decode> decodes;
  for (size_t b = 0; b < kBuckets; ++b) {
    decodes.push_back({.payloads = {&spans[b], 1}, .out = out[b], .verdict = &verdicts[kBuckets + b]});
  }
  const std::span<const std::byte> shorter = spans[7].first(spans[7].size() - 1);
  decodes[7].payloads = {&shorter, 1};
  device->decode_all(decodes, queue);
  finish(queue);
  for (size_t b = 0; b < kBuckets; ++b) {
    const Encoded alone = encode(*host_, {.gradient = gradients[b]});
    const std::vector<std::byte> bytes = payloads[b]->values();
    Payload payload(bytes.size());
    if (!bytes.empty()) std::memcpy(payload.data(), bytes.data(), bytes.size());
    EXPECT_EQ(used_of(*host_, payload), used_of(*host_, alone.payload)) << b;
    EXPECT_TRUE(same_bytes(next[b], alone.residual_next)) << b;
    EXPECT_TRUE(payloads[b]->intact() && scratch[b]->intact());
    EXPECT_EQ(verdicts[kBuckets + b].rejected, b == 7 ? 1U : 0U);
    const DecodeCase decoding{.payloads = {payload}, .n = out[b].size()};
    EXPECT_TRUE(b == 7 || same_bytes(out[b], decode(*host_, decoding).value()));
  }
}

// A matrix so large that sums over its rows consist of several runs (PowerSgdLayout::partials).
TEST(DevicePowerSgd, HasTheSumsOfManyRowsThatTheHostHas) {
  constexpr int64_t kRows = 6600, kColumns = 40, kNumel = kRows * kColumns + 3;
  const core::CompressorSpec spec{"powersgd", 3};
  const core::Matrix matrix{2, kRows, kColumns};
  const core::Extent extent{kNumel, {&matrix, 1}};
  ASSERT_GT(compress::PowerSgdLayout::partials(matrix), 1);
  const std::vector<float> gradient = make_data(Data::layered, kNumel), residual = make_data(Data::normal, kNumel);
  std::vector<std::vector<std::byte>> payloads[2];
  std::vector<float> next[2], out[2];
  for (int side = 0; side < 2; ++side) {
    const auto compressor = side == 0 ? std::move(compress::make_compressor(spec)).value()
                                      : std::move(compress::cuda::make_device_compressor(spec)).value();
    const auto host = compress::make_serial_queue();
    compress::Queue& queue = side == 0 ? *host : device_queue();
    Guarded<std::byte> scratch(static_cast<size_t>(compressor->scratch_bytes(extent)));
    Guarded<std::byte> between(static_cast<size_t>(compressor->round_bytes(extent)));
    next[side].resize(kNumel);
    out[side].resize(kNumel);
    for (int round = 0; round < 2; ++round) {
      Guarded<std::byte> payload(static_cast<size_t>(compressor->payload_bytes(extent, round)));
      const compress::Work work{.matrices = extent.matrices, .round = round, .round_memory = between.data()};
      compress::Verdict verdict;
      compressor->encode({.gradient = gradient,
                          .residual = residual.data(),
                          .residual_next = next[side].data(),
                          .work = work,
                          .payload = payload.span(),
                          .scratch = scratch.span(),
                          .verdict = &verdict},
                         queue);
      const std::span<const std::byte> one = payload.span();
      compressor->decode({.payloads = {&one, 1}, .out = out[side], .work = work, .verdict = &verdict}, queue);
      finish(queue);
      EXPECT_EQ(verdict.nonfinite + verdict.rejected, 0U);
      EXPECT_TRUE(payload.intact() && scratch.intact() && between.intact());
      payloads[side].push_back(payload.values());
    }
  }
  EXPECT_EQ(payloads[0], payloads[1]);
  EXPECT_TRUE(same_bytes(next[0], next[1]));
  EXPECT_TRUE(same_bytes(out[0], out[1]));
}

// Payloads with several runs, streams that end elsewhere, and bits that no encoder wrote.
TEST(DeviceIntPacked, AcceptsTheStreamsThatTheHostAccepts) {
  constexpr size_t kElements = 20000;
  for (const core::CompressorSpec& spec :
       {core::CompressorSpec{"int4packed", 64}, core::CompressorSpec{"int4packed", 8192},
        core::CompressorSpec{"int3packed", 192}}) {
    const auto host = std::move(compress::make_compressor(spec)).value();
    const auto device = on_device(std::move(compress::cuda::make_device_compressor(spec)).value());
    const compress::IntPackedLayout layout = compress::int_packed_layout(spec, kElements);
    const auto ends_at = static_cast<size_t>(layout.ends_at), streams_at = static_cast<size_t>(layout.streams_at);
    const Payload good = encode(*host, {.gradient = make_data(Data::normal, kElements)}).payload;
    const auto compare = [&](const Payload& payload) {
      expect_same_decode(*device, *host, {.payloads = {payload, good}, .n = kElements});
    };
    for (const size_t run : {0, 1, 2}) {
      for (const int change : {-1, 1, 1 << 11, 1 << 20, -(1 << 30)}) {
        SCOPED_TRACE(testing::Message() << core::to_string(spec) << ", run " << run << ", changed by " << change);
        Payload payload = good;
        uint32_t end;
        std::memcpy(&end, payload.data() + ends_at + run * sizeof end, sizeof end);
        end += static_cast<uint32_t>(change);
        std::memcpy(payload.data() + ends_at + run * sizeof end, &end, sizeof end);
        compare(payload);
      }
    }
    Payload around = good;  // from beyond the address space to its beginning
    for (const uint32_t end : {uint32_t{0xfffffffe}, uint32_t{7}}) {
      std::memcpy(around.data() + ends_at + (end == 7 ? sizeof end : 0), &end, sizeof end);
    }
    compare(around);
    for (size_t bit = 0; bit < 200; ++bit) {  // of the table and the first groups
      SCOPED_TRACE(testing::Message() << core::to_string(spec) << ", bit " << bit);
      Payload flipped = good;
      flipped[streams_at + bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
      compare(flipped);
    }
    // A group takes as many bits with a k that is one too large as with the largest k.
    Payload beyond = encode(*host, {.gradient = make_data(Data::constant, kElements)}).payload;
    const size_t groups_at = streams_at + static_cast<size_t>(compress::rice_table_bits(layout.run)) / 8;
    EXPECT_EQ(beyond[groups_at] & 7, spec.name[3] - '0' - 2);
    ++beyond[groups_at];
    EXPECT_FALSE(decode(*host, {.payloads = {beyond}, .n = kElements}).ok());
    compare(beyond);
    Payload of_zeros = good;  // and negative ones
    std::fill(of_zeros.begin() + 16, of_zeros.begin() + static_cast<ptrdiff_t>(ends_at), 0);
    const DecodeCase job{.payloads = {of_zeros}, .n = kElements};
    EXPECT_TRUE(same_bytes(decode(*device, job).value(), decode(*host, job).value()));
    for (uint64_t seed = 0; seed < 12; ++seed) {
      SCOPED_TRACE(testing::Message() << core::to_string(spec) << ", noise " << seed);
      const auto bytes = static_cast<size_t>(host->traits().used_bytes(std::as_bytes(std::span(good)))) - streams_at;
      const std::vector<float> noise = make_data(Data::normal, bytes / sizeof(float), seed),
                               more = make_data(Data::normal, bytes / sizeof(float), seed + 100);
      Payload payload = good;
      for (size_t i = 0; i < noise.size(); ++i) {
        uint32_t word = std::bit_cast<uint32_t>(noise[i]), other = std::bit_cast<uint32_t>(more[i]);
        if (seed % 3 != 0) word = seed % 3 == 1 ? word & other : word | other;  // mostly set bits, or few
        std::memcpy(payload.data() + streams_at + i * sizeof word, &word, sizeof word);
      }
      compare(payload);
    }
  }
}

// Every row of the compressor table has a device compressor.
TEST(DeviceTable, HasEveryCompressor) {
  std::vector<std::string_view> host, device;
  for (const auto& row : compress::compressor_table()) host.push_back(row.traits.name);
  for (const auto& row : compress::cuda::device_table()) device.push_back(row.name);
  EXPECT_THAT(device, testing::UnorderedElementsAreArray(host));
}

}  // namespace
}  // namespace gradtune::suites
