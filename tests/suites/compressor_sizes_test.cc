// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests every compressor on more elements than 31 bits can count. The gradient is a virtual stream: a few megabytes
// of memory that are mapped over and over, side by side. So are residual and output, so that only payloads take
// memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <stdexcept>

#include "engine/compress/calls.h"
#include "tests/suites/compressor_harness.h"

namespace gradtune::suites {
namespace {

constexpr size_t kPattern = size_t{1} << 19;  // elements, 2 MiB
constexpr size_t kTail = 12345;
constexpr size_t kMany = (size_t{1} << 31) + kTail;

void* checked(void* address) {
  if (address == MAP_FAILED) throw std::runtime_error("mmap failed");
  return address;
}

// kMany floats; those that are kPattern apart are the same memory.
class VirtualStream {
 public:
  VirtualStream() {
    const int file = memfd_create("virtual_stream", 0);
    if (file < 0 || ftruncate(file, kBytes) != 0) throw std::runtime_error("memfd_create failed");
    memory_ = static_cast<std::byte*>(
        checked(mmap(nullptr, kTimes * kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)));
    for (size_t i = 0; i < kTimes; ++i) {
      checked(mmap(memory_ + i * kBytes, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0));
    }
    close(file);
  }
  ~VirtualStream() { munmap(memory_, kTimes * kBytes); }
  VirtualStream(const VirtualStream&) = delete;
  VirtualStream& operator=(const VirtualStream&) = delete;

  float* data() { return reinterpret_cast<float*>(memory_); }
  std::span<float> span() { return {data(), kMany}; }

 private:
  static constexpr size_t kBytes = kPattern * sizeof(float), kTimes = kMany / kPattern + 1;
  std::byte* memory_;
};

// Zeros; parts that are never written take no memory.
class Memory {
 public:
  explicit Memory(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    memory_ = static_cast<std::byte*>(checked(mmap(nullptr, bytes_ + 1, PROT_READ | PROT_WRITE, kFlags, -1, 0)));
  }
  ~Memory() { munmap(memory_, bytes_ + 1); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::span<std::byte> span() { return {memory_, bytes_}; }

 private:
  size_t bytes_;
  std::byte* memory_;
};

class CompressorSizes : public testing::TestWithParam<std::string> {};

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const compress::CompressorRow& row : compress::compressor_table()) all.emplace_back(row.traits.name);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Table, CompressorSizes, testing::ValuesIn(names()), [](const auto& row) { return row.param; });

// Elements behind the 2^31st are the same as by themselves, if compressors work on blocks. Compressors that choose
// among all elements must have chosen them.
TEST_P(CompressorSizes, ElementsBeyond2ToThe31) {
  const auto compressor = make(GetParam());
  const core::Matrix matrix{0, 1 << 15, 1 << 16};
  const bool has_matrices = compressor->traits().needs_matrices;
  const core::Extent extent(kMany, has_matrices ? std::span(&matrix, 1) : std::span<const core::Matrix>());
  VirtualStream gradient, residual_next, out;
  const std::vector<float> pattern = make_data(Data::layered, kPattern);
  std::copy(pattern.begin(), pattern.end(), gradient.data());
  Memory scratch(compressor->scratch_bytes(extent)), between(compressor->round_bytes(extent));
  const auto queue = compress::make_serial_queue();  // in order, so that the tail is written last
  for (int round = 0; round < compressor->traits().rounds; ++round) {
    Memory payload(compressor->payload_bytes(extent, round));
    const compress::Work work{
        .matrices = extent.matrices, .random = {.seed = 3}, .round = round, .round_memory = between.span().data()};
    ASSERT_TRUE(compress::encode_now(*compressor,
                                     {.gradient = gradient.span(),
                                      .residual_next = residual_next.data(),
                                      .work = work,
                                      .payload = payload.span(),
                                      .scratch = scratch.span()},
                                     *queue));
    const std::span<const std::byte> payloads[] = {payload.span()};
    const core::Status status =
        compress::decode_now(*compressor, {.payloads = payloads, .out = out.span(), .work = work}, *queue);
    ASSERT_TRUE(status.ok()) << status.error().message;
  }
  const std::vector<float> tail(out.data() + (kMany - kTail), out.data() + kMany);
  const std::vector<float> given(pattern.begin(), pattern.begin() + kTail);
  if (has_matrices) {
    EXPECT_EQ(tail, given) << "behind the matrix";
    return;
  }
  const std::string name = GetParam();
  if (name == "randk") {  // one of this many neighbours
    size_t sent = 0;
    for (size_t i = 0; i < kTail; ++i) {
      if (tail[i] == 0) continue;
      EXPECT_EQ(tail[i], given[i]);
      ++sent;
    }
    EXPECT_NEAR(static_cast<double>(sent), compressor->spec().parameter * kTail, 2);
    return;
  }
  if (name == "topk" || name == "threshk" || name == "dgc") {
    size_t sent = 0;
    double least = HUGE_VAL, most = 0;
    for (size_t i = 0; i < kTail; ++i) {
      if (tail[i] != 0) {
        EXPECT_NEAR(tail[i], given[i], 0x1p-8 * std::abs(given[i]));
      }
      sent += tail[i] != 0 ? 1 : 0;
      if (tail[i] != 0) least = std::min(least, std::abs(double{given[i]}));
      if (tail[i] == 0) most = std::max(most, std::abs(double{given[i]}));
    }
    EXPECT_GT(sent, kTail / 1000);
    EXPECT_GE(least, most);
    return;
  }
  const EncodeCase alone{.gradient = given, .random = {.seed = 3}, .first_element = int64_t{1} << 31};
  const Payload payload = encode(*compressor, alone).payload;
  EXPECT_TRUE(same_bytes(tail, decode(*compressor, decoding_of(alone, {payload})).value()));
}

}  // namespace
}  // namespace gradtune::suites
