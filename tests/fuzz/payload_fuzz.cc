// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Payloads are untrusted: for any bytes, a decoder writes nothing outside of its output and returns a value or an
// error that names the payload. Input: the row of the table, plus the number of rows for the least parameter or
// twice that for the largest one; 2 bytes of the number of elements; the payload. The function has libFuzzer's name;
// the replay test runs it over payloads of every compressor and mutations of them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <new>
#include <vector>

#include "engine/compress/calls.h"
#include "engine/compress/compressor.h"
#include "tests/suites/compressor_harness.h"

namespace {

using namespace gradtune;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "payload_fuzz: %s\n", what);
  std::abort();
}

// Aligned as payloads are, and exactly as long, so that AddressSanitizer sees reads behind it.
class Payload {
 public:
  Payload(const uint8_t* data, size_t size) : size_(size) {
    memory_ = static_cast<std::byte*>(::operator new (size, std::align_val_t{16}));
    if (size > 0) std::memcpy(memory_, data, size);
  }
  ~Payload() { ::operator delete (memory_, std::align_val_t{16}); }
  Payload(const Payload&) = delete;
  Payload& operator=(const Payload&) = delete;
  std::span<const std::byte> span() const { return {memory_, size_}; }

 private:
  std::byte* memory_;
  size_t size_;
};

}  // namespace

core::Status decode_input(const uint8_t* data, size_t size) {
  constexpr size_t kHead = 3;
  if (size < kHead) return {};
  const auto rows = compress::compressor_table();
  const core::CompressorTraits& traits = rows[data[0] % rows.size()].traits;
  const double parameters[] = {traits.parameter_default, traits.parameter_min, traits.parameter_max};
  const double parameter = parameters[data[0] / rows.size() % std::size(parameters)];
  const size_t n = data[1] | static_cast<size_t>(data[2]) << 8;
  const auto compressor = std::move(compress::make_compressor({std::string(traits.name), parameter})).value();
  // With several rounds, the first payload gets a small part of the input, and the last the rest.
  const std::vector<core::Matrix> matrices = suites::matrices_among(*compressor, n);
  const core::Extent extent{static_cast<int64_t>(n), matrices};
  std::vector<std::byte> between(static_cast<size_t>(compressor->round_bytes(extent)));
  const auto queue = compress::make_serial_queue();
  std::vector<float> out(n);
  core::Status status;
  size_t begin = kHead;
  for (int round = 0; round < traits.rounds && status; ++round) {
    const auto bytes = static_cast<size_t>(compressor->payload_bytes(extent, round));
    const Payload payload(data + begin, round + 1 == traits.rounds ? size - begin : std::min(bytes, size - begin));
    begin += payload.span().size();
    const std::span<const std::byte> payloads[] = {payload.span()};
    const compress::Work work{.matrices = extent.matrices, .round = round, .round_memory = between.data()};
    status = compress::decode_now(*compressor, {.payloads = payloads, .out = out, .work = work}, *queue);
  }
  return status;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const core::Status status = decode_input(data, size);
  if (status) return 0;
  require(status.error().code == core::Error::Code::corrupt, "an error of another kind");
  require(status.error().message.starts_with("payload 0 of 1: "), "an error that names no payload");
  return 0;
}
