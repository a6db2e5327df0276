// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Kernels of the packed compressors (packed.cc says what they are for): numbers whose exponents lie close together are
// sent with as many bits for the exponent as that takes. Internal to engine/compress.
//
// A group is 64 elements, the last one filled up with zeros. Of a group whose exponents are 0 or lie in (base, base +
// 2^bits): so many planes (planes-inl.h) of codes, which are 0 for exponent 0 and the exponent less `base` otherwise;
// then, of each element, a byte of sign and upper 7 bits of the fraction; then, of fp32,
// the lower 16 bits of the fraction. A group of nothing but positive zeros is not sent at all. Every fp32 number is
// kept bit for bit, subnormal ones and those that are none as well.
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

// What numbers are rounded to before they are packed.
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

// Of one payload, the groups of a run.
struct PackedRun {
  const GroupHeader* headers;
  const std::byte* groups;
};

// Of so many payloads at most are groups added at once.
inline constexpr size_t kMostPackedRuns = 64;

// out = (accumulate ? out : 0) + what the payloads' groups say, in their order. Sizes were checked.
void add_groups(PackedType type, std::span<const PackedRun> payloads, std::span<float> out, bool accumulate,
                bool stream);

}  // namespace gradtune::compress
