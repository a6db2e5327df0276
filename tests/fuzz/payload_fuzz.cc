// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Payloads are untrusted: whatever the bytes, a decoder writes nothing outside of its output and answers with a value
// or with an error that names the payload. Input: the row of the table, 2 bytes of the number of elements, the payload.
// The function has libFuzzer's name; the replay test runs it over payloads of every compressor and mutations of them.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "engine/compress/compressor.h"

namespace {

using namespace gradtune;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "payload_fuzz: %s\n", what);
  std::abort();
}

// Aligned as payloads are, and no byte longer, so that AddressSanitizer sees what is read behind it.
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

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kHead = 3;
  if (size < kHead) return 0;
  const auto rows = compress::table();
  const core::CompressorTraits& traits = rows[data[0] % rows.size()].traits;
  const size_t n = data[1] | static_cast<size_t>(data[2]) << 8;
  const auto compressor =
      std::move(compress::make_compressor({std::string(traits.name), traits.parameter_default})).value();
  const Payload payload(data + kHead, size - kHead);
  const std::span<const std::byte> payloads[] = {payload.span()};
  std::vector<float> out(n);
  const core::Status status = compressor->decode(payloads, out, false, *compress::make_serial_queue());
  if (status) return 0;
  require(status.error().code == core::Error::Code::corrupt, "an error of another kind");
  require(status.error().message.starts_with("payload 0 of 1: "), "an error that names no payload");
  return 0;
}
