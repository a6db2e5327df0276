// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Shared parts of the compressors in this folder: the frame of opaque payloads, the checks of a call, and the
// partition of work into blocks. Internal to engine/compress.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "engine/compress/compressor.h"
#include "engine/core/round_up.h"

namespace gradtune::compress {

// --- Frame of an opaque payload: a header, then sections that start at multiples of 16 bytes.

struct PayloadHeader {
  uint32_t magic;
  uint32_t compressor;  // compressor_id(name)
  uint32_t n;           // elements
  uint32_t count;       // a count that depends on the compressor: sent elements, scales, ...
};
static_assert(sizeof(PayloadHeader) == 16);

// "GTP" and the version of the layout.
inline constexpr uint32_t kPayloadMagic = 0x01505447;

// Four characters that stay with a compressor forever, since old payloads are recognised by them.
constexpr uint32_t compressor_id(const char (&name)[5]) {
  return uint32_t{uint8_t(name[0])} | uint32_t{uint8_t(name[1])} << 8 | uint32_t{uint8_t(name[2])} << 16 |
         uint32_t{uint8_t(name[3])} << 24;
}

using core::round_up;
constexpr int64_t section_bytes(int64_t bytes) { return round_up(bytes, 16); }

void write_header(std::span<std::byte> payload, uint32_t compressor, int64_t n, int64_t count);

// The reason why a payload cannot be decoded: "index 7 is 9, ...".
struct Rejection {
  size_t position;  // of the payload
  std::string what;
};
using Rejected = std::optional<Rejection>;

// The payload must be long enough for a header.
PayloadHeader header_of(std::span<const std::byte> payload);

// The unit in which a payload that need not be full counts its used bytes.
inline constexpr int64_t kUsedUnit = 16;

// Used bytes of such a payload: at least the size of the header and at most the size of the payload, whatever count
// the header holds.
int64_t used_bytes(std::span<const std::byte> payload);

// The range of counts that a payload may have.
struct Counts {
  Counts(int64_t count) : least(count), most(count) {}  // NOLINT(google-explicit-constructor)
  Counts(int64_t lowest, int64_t highest) : least(lowest), most(highest) {}

  int64_t least, most;
};

// Check the sizes of all payloads; check_frames also checks every field of the header of opaque payloads.
Rejected check_sizes(std::span<const std::span<const std::byte>> payloads, int64_t bytes);
Rejected check_frames(std::span<const std::span<const std::byte>> payloads, int64_t bytes, uint32_t compressor,
                      int64_t n, const Counts& counts);

// Throws for a programmer's error.
void check_encode(const Compressor& compressor, const Encode& job);

// --- The compressors of this folder that work on the host; those that work on a device are in cuda/.

class HostCompressor : public Compressor {
 public:
  HostCompressor(core::CompressorSpec spec, const core::CompressorTraits& traits)
      : spec_(std::move(spec)), traits_(traits) {}

  const core::CompressorTraits& traits() const final { return traits_; }
  const core::CompressorSpec& spec() const final { return spec_; }
  void encode(const Encode& job, Queue& queue) const final;
  void decode(const Decode& job, Queue& queue) const final;
  core::Error defect(const Decode& job, size_t position) const final;

 private:
  // As in the contract; encode_on_host returns true if all was finite.
  virtual bool encode_on_host(const Encode& job, HostQueue& queue) const = 0;
  virtual Rejected decode_on_host(const Decode& job, HostQueue& queue) const = 0;

  const core::CompressorSpec spec_;
  const core::CompressorTraits traits_;
};

template <class Made>
std::unique_ptr<Compressor> make_as(const core::CompressorSpec& spec, const core::CompressorTraits& traits) {
  return std::make_unique<Made>(spec, traits);
}

// The factor from p to error_scale * scale * p. The first encode of a program has scale = 1/N and error_scale = N,
// whose product is 1 except for rounding. The factor is then 1, so an element that was not sent is kept bit for bit.
float unsent_factor(const Encode& job);

// The elements of an encode in the form that kernels take.
struct EncodeRun {
  const float* gradient;
  const float* residual;  // or null
  float* residual_next;   // or null
  bool add_to_residual_next;
  float scale, error_scale;
  float unsent_factor;  // the intended value of error_scale * scale
  size_t n;
};
EncodeRun run_of(const Encode& job, int64_t begin, int64_t end);

// The share of n elements, rounded up. A product that is whole except for rounding counts as whole: 0.07 of 100 is 7.
int64_t share_of(double share, int64_t n);

// 128 random bits for the element at that position of the gradient, the same on all ranks. The highest bit of the use
// keeps them apart from the numbers that a rank draws for itself (random-inl.h).
inline constexpr uint32_t kSharedUse = 0x80000000;
std::array<uint32_t, 4> shared_random(const Random& random, int64_t element);

// --- Blocks.

// Elements that one task works on: many compared with the cost of a task, few compared with the L2 cache.
inline constexpr int64_t kBlockElements = 8192;

// Elements of a task in a bucket of n elements: up to eight blocks, as long as there are 64 tasks. Larger tasks are
// faster: a task that ends waits until its streamed stores have left, and the next one begins with nothing
// prefetched.
inline constexpr int64_t kMostTaskElements = 8 * kBlockElements;
constexpr int64_t task_elements(int64_t n) {
  return std::clamp(n / 64 / kBlockElements * kBlockElements, kBlockElements, kMostTaskElements);
}

// Outputs of at least this size are written past the caches. They would evict each other before they are read again,
// and a normal store reads the line first (measured on one core: 1.3-1.7x slower).
inline constexpr int64_t kStreamBytes = 1 << 20;

// Elements of a group of bit planes (planes-inl.h). Blocks whose codes are stored in planes are multiples of it.
inline constexpr int64_t kPlaneElements = 64;

// pointer + i, for pointers that may be null.
template <typename T>
constexpr T* offset(T* pointer, int64_t i) {
  return pointer == nullptr ? nullptr : pointer + i;
}

// Runs body(begin, end) for the blocks of [0, n); all blocks but the last have `step` elements.
template <typename Body>
void for_ranges(HostQueue& queue, int64_t n, int64_t step, Body&& body) {
  for_blocks(queue, (n + step - 1) / step, [&](int64_t block) { body(block * step, std::min(n, (block + 1) * step)); });
}

// Returns the lowest i in [0, n) with bad(i), or n. It is meant for checks that normally find nothing: they cost one
// read.
template <typename Bad>
int64_t find_first(HostQueue& queue, int64_t n, const Bad& bad) {
  std::atomic<int64_t> first = n;
  for_ranges(queue, n, kBlockElements, [&](int64_t begin, int64_t end) {
    bool any = false;
    for (int64_t i = begin; i < end; ++i) any |= bad(i);
    if (!any) return;
    while (!bad(begin)) ++begin;
    int64_t seen = first.load(std::memory_order_relaxed);
    while (begin < seen && !first.compare_exchange_weak(seen, begin, std::memory_order_relaxed)) {
    }
  });
  return first.load(std::memory_order_relaxed);
}

// Masks for the bits of |x|. These bits are ordered as the values are, with Inf and NaN above all.
inline constexpr uint32_t kAbsBits = 0x7fffffff;
inline constexpr uint32_t kInfinityBits = 0x7f800000;

// The largest of the values that several threads add.
class Largest {
 public:
  void add(uint32_t value) {
    uint32_t seen = value_.load(std::memory_order_relaxed);
    while (seen < value && !value_.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
    }
  }
  uint32_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint32_t> value_ = 0;
};

// True if factor * x is finite for the x with these bits of |x|; then it is finite for all smaller x as well.
bool finite_product(float factor, uint32_t abs_bits);

}  // namespace gradtune::compress
