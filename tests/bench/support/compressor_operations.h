// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The operations of a compressor that benchmarks measure, each with the stream that moves the same arrays.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "engine/compress/compressor.h"
#include "tests/bench/support/stream_kernels.h"

namespace gradtune::bench {

// Cache-aligned, and touched, so that no page is created while the clock runs.
class Memory {
 public:
  explicit Memory(int64_t bytes);
  std::byte* data() const { return memory_.get(); }
  float* floats() const { return reinterpret_cast<float*>(memory_.get()); }

 private:
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete (memory, std::align_val_t{64}); }
  };
  std::unique_ptr<std::byte, Free> memory_;
};

struct Operation {
  std::string name;  // encode, encode_feedback, decode_1, decode_2, decode_8
  Stream stream;
  double bytes;  // for all elements, including those outside of whole groups
  std::function<void()> run;
};

// The data of one compressor at one size, of at least kGroup elements: one matrix, for compressors that need some.
class Bucket {
 public:
  static constexpr int64_t kColumns = 1024;  // of the matrix

  // All sizes share the arrays. `sparse` is the gradient of compressors that take rows.
  struct Arrays {
    const Memory &gradient, &sparse, &residual, &residual_next, &out;
  };
  Bucket(const compress::Compressor& compressor, int64_t n, const Arrays& arrays);

  // Operations with payloads to decode. Encoders find the state that such an encode left before. The bucket must
  // outlive the result, and only the last one may be run.
  Operation encode_operation(bool feedback, compress::HostQueue& queue);
  Operation decode_operation(int payloads, compress::HostQueue& queue);

 private:
  static constexpr int kMostPayloads = 8;

  bool takes_rows() const { return compressor_.traits().takes_rows; }
  const Memory& gradient() const { return takes_rows() ? arrays_.sparse : arrays_.gradient; }
  double bytes(core::HostOperation operation, int payloads) const;
  int last() const { return compressor_.traits().rounds - 1; }
  core::Extent extent() const { return {n_, {&matrix_, 1}}; }
  int64_t payload_group() const;
  compress::Work work(int round) const;
  std::span<std::byte> payload(const Memory& memory, int round) const;
  const Memory& sent() const { return payloads_[kMostPayloads]; }
  void decode(int payloads, int round, compress::HostQueue& queue) const;
  void encode(bool feedback, compress::HostQueue& queue) const;
  void prepare(bool feedback, compress::HostQueue& queue);

  const compress::Compressor& compressor_;
  int64_t n_;
  core::Matrix matrix_;
  Arrays arrays_;
  int64_t payload_bytes_, used_bytes_;
  Memory scratch_, between_, state_, state_next_;
  std::vector<Memory> payloads_;  // payloads to decode, and one behind them to encode
};

}  // namespace gradtune::bench
