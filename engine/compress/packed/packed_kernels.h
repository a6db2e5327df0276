// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Kernels of the packed compressors (packed.cc says what they are for): numbers whose exponents lie close together are
// sent with as many bits for the exponent as that takes. Internal to engine/compress.
//
// A group is 64 elements, the last one filled up with zeros. Its exponents are 0 or lie in (base, base + 2^bits). A
// group consists of these parts, in this order:
// - `bits` planes (planes-inl.h) of codes: 0 for exponent 0, else the exponent less `base`;
// - a byte for each element with its sign and the upper 7 bits of its fraction;
// - for fp32, the lower 16 bits of each fraction.
// A group of nothing but positive zeros is not sent at all. Every fp32 number is kept bit for bit, subnormal numbers,
// infinities and NaNs included.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/compress/shared.h"

namespace gradtune::compress {

inline constexpr int64_t kGroupElements = kPlaneElements;

struct GroupHeader {
  uint8_t base = 0;
  uint8_t bits = 0;  // 0 to 8, or kNoGroup

  static constexpr uint8_t kNoGroup = 0xff;
};
static_assert(sizeof(GroupHeader) == 2);

// The type that numbers are rounded to before they are packed.
enum class PackedType : uint8_t { f32, bf16 };

// Bytes of a group with so many bits, which are valid.
constexpr int64_t group_bytes(PackedType type, int bits) {
  return bits == GroupHeader::kNoGroup ? 0 : 8 * bits + kGroupElements * (type == PackedType::f32 ? 3 : 1);
}

struct PackedHeaders {
  int64_t bytes;  // of all groups
  bool finite;
};

// Writes the headers of a run's groups, and the next residual where the error is kept. `stream`: results that are large
// go past the caches.
PackedHeaders write_group_headers(PackedType type, const EncodeRun& run, bool stream, GroupHeader* headers);

// Writes the groups of a run, one behind the other.
void write_groups(PackedType type, const EncodeRun& run, bool stream, const GroupHeader* headers, std::byte* to);

// The groups of a run in one payload.
struct PackedRun {
  const GroupHeader* headers;
  const std::byte* groups;
};

// The largest number of payloads whose groups are added at once.
inline constexpr size_t kMostPackedRuns = 64;

// out = (accumulate ? out : 0) + what the payloads' groups say, in their order. Sizes were checked.
void add_groups(PackedType type, std::span<const PackedRun> payloads, std::span<float> out, bool accumulate,
                bool stream);

}  // namespace gradtune::compress
