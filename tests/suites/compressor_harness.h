// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Calls compressors for tests: with memory that notices writes outside of it, arrays that start anywhere, data of
// several kinds, and every SIMD target of this machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "engine/compress/compressor.h"

namespace gradtune::suites {

// n elements between two guards, `misaligned` elements behind a cache line. Under AddressSanitizer nothing follows
// the elements, so that it also sees reads there.
template <typename T>
class Guarded {
 public:
  explicit Guarded(size_t n, size_t misaligned = 0, unsigned char fill = 0xa5)
      : n_(n), front_(kLine + misaligned * sizeof(T)), bytes_(front_ + n * sizeof(T) + kBack) {
    memory_ = static_cast<unsigned char*>(::operator new (bytes_, std::align_val_t{kLine}));
    std::memset(memory_, kGuard, bytes_);
    std::memset(memory_ + front_, fill, n * sizeof(T));
  }
  Guarded(std::span<const T> values, size_t misaligned) : Guarded(values.size(), misaligned) {
    if (n_ > 0) std::memcpy(memory_ + front_, values.data(), values.size_bytes());
  }
  ~Guarded() { ::operator delete (memory_, std::align_val_t{kLine}); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  T* data() { return reinterpret_cast<T*>(memory_ + front_); }
  std::span<T> span() { return {data(), n_}; }
  std::vector<T> values() { return std::vector<T>(data(), data() + n_); }

  bool intact() const {
    bool same = true;
    for (size_t i = 0; i < front_; ++i) same &= memory_[i] == kGuard;
    for (size_t i = front_ + n_ * sizeof(T); i < bytes_; ++i) same &= memory_[i] == kGuard;
    return same;
  }

 private:
  static constexpr size_t kLine = 64;
  static constexpr unsigned char kGuard = 0xc9;
#ifdef __SANITIZE_ADDRESS__
  static constexpr size_t kBack = 0;
#else
  static constexpr size_t kBack = kLine;
#endif
  size_t n_, front_, bytes_;
  unsigned char* memory_;
};

// For a compressor of several rounds, the payloads of all rounds, one behind the other.
using Payload = std::vector<unsigned char>;

// The matrices among n elements of tests, for compressors that need them: several shapes, with vectors between them.
std::vector<core::Matrix> matrices_among(const compress::Compressor& compressor, size_t n);

int64_t payload_bytes(const compress::Compressor& compressor, size_t n);

struct EncodeCase {
  std::vector<float> gradient;
  std::vector<float> residual = {};  // empty: none is given
  std::vector<float> add_to = {};    // not empty: earlier content of the next residual, to which the error is added
  bool keep_error = true;
  float scale = 1, error_scale = 1;
  int summed = 1;
  compress::Random random = {};
  int64_t first_element = 0;
  int64_t row = 0;
  std::vector<unsigned char> state = {};  // empty: none is given
  size_t misaligned = 1;                  // in elements; residuals have some more
  size_t residual_further = 0, next_further = 0;
  unsigned char fill = 0xa5;  // earlier content of payload, scratch and next residual
};

struct Encoded {
  bool finite;
  Payload payload;
  std::vector<float> residual_next;       // empty if the error is not kept
  std::vector<unsigned char> state_next;  // empty if no state was given
};

// Runs all rounds, as if there were no other rank. Fails the running test if bytes outside of the outputs were
// written.
Encoded encode(const compress::Compressor& compressor, const EncodeCase& job, compress::HostQueue& queue);
Encoded encode(const compress::Compressor& compressor, const EncodeCase& job);  // serial

struct DecodeCase {
  std::vector<Payload> payloads;
  size_t n;
  std::vector<float> add_to = {};  // not empty: accumulate
  compress::Random random = {};
  int64_t first_element = 0;
  int64_t row = 0;
  size_t misaligned = 3;
};

// The decode for payloads of that encode.
DecodeCase decoding_of(const EncodeCase& job, std::vector<Payload> payloads);

core::Result<std::vector<float>> decode(const compress::Compressor& compressor, const DecodeCase& job,
                                        compress::HostQueue& queue);
core::Result<std::vector<float>> decode(const compress::Compressor& compressor,
                                        const DecodeCase& job);  // serial

// From a spec such as "topk:0.01".
std::unique_ptr<compress::Compressor> make(const std::string& spec);

enum class Data : uint8_t { normal, layered, sparse, ties, constant, zero };
inline constexpr Data kAllData[] = {Data::normal, Data::layered, Data::sparse, Data::ties, Data::constant, Data::zero};
std::vector<float> make_data(Data kind, size_t n, uint64_t seed = 1);

// gradient + residual, as compressors form it.
std::vector<float> corrected(const EncodeCase& job);

// Compares the bytes of both.
bool same_bytes(std::span<const float> a, std::span<const float> b);

// Plain threads, fresh ones in each call: it does the same as oneTBB, but is visible to ThreadSanitizer.
std::unique_ptr<compress::HostQueue> make_thread_queue(int threads);

// All targets that this machine can run, by Highway's bits; `ScopedTarget` makes compressors use one of them.
std::vector<int64_t> simd_targets();
std::string target_name(int64_t target);
class ScopedTarget {
 public:
  explicit ScopedTarget(int64_t target);
  ~ScopedTarget();
  ScopedTarget(const ScopedTarget&) = delete;
  ScopedTarget& operator=(const ScopedTarget&) = delete;
};

}  // namespace gradtune::suites
