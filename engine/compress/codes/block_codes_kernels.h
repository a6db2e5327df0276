// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Kernels of the compressors that send, of each block, a scale and a code of 1 to 8 bits for each element: one pass
// over a run of blocks. Internal to engine/compress.
//
// A block's unit is what its elements are divided by, and it is the scale that is sent: as fp32, or as the next larger
// bfloat16, by which elements are divided then. Codes of 8 bits are bytes; codes of fewer bits are, too, or lie in
// planes (planes-inl.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/compress/shared.h"

namespace gradtune::compress {

struct CodeFormat {
  // The code of x, which is the element divided by the unit:
  // - nearest: the nearest one of 2^bits - 1 integers around 0, ties to even. With 1 bit they are -1/2 and 1/2.
  // - stochastic: one of both neighbouring integers at random, so that the mean is x.
  // - e4m3, e5m2: the nearest floating-point number of these 8 bits.
  // - power: sign and exponent of one of both neighbouring powers of two, at random in the same way.
  enum class Codes : uint8_t { nearest, stochastic, e4m3, e5m2, power } codes;
  // The norm that makes the unit: the largest magnitude of the block, or its Euclidean norm. It becomes the value of
  // the largest code. With `power`, the unit is the power of two above.
  enum class Norm : uint8_t { largest, euclidean } norm = Norm::largest;
  int bits = 8;
  enum class Unit : uint8_t { f32, bf16 } unit = Unit::f32;
  bool planes = true;  // codes of fewer than 8 bits lie in planes

  int stored_bits() const { return planes ? bits : 8; }
};

constexpr int64_t unit_bytes(CodeFormat::Unit unit) { return unit == CodeFormat::Unit::f32 ? 4 : 2; }

constexpr int64_t code_bytes(int64_t n, int bits) {
  return bits == 8 ? n : (n + kPlaneElements - 1) / kPlaneElements * bits * (kPlaneElements / 8);
}

// The target of an encoded run of whole blocks; the last block of the bucket may be shorter.
struct CodeTarget {
  Random random;
  uint64_t first_element;
  std::byte* units;  // one for each block
  uint8_t* codes;
  size_t block;
  bool stream;               // results that are large go past the caches
  bool stream_codes = true;  // ... codes among them
};

// Returns whether all units and what codes make of them are finite. A unit that is not is written as zero; so is one
// that is not a normal number, and its elements are sent as zeros.
bool encode_codes(const CodeFormat& format, const EncodeRun& run, const CodeTarget& to);

struct CodeDecode {
  std::span<const std::span<const std::byte>> payloads;  // at least one
  size_t units_at, codes_at;  // bytes from the start of each payload to this run's units and codes
  float* out;
  size_t block, n;  // whole blocks, but for the last one of the bucket
  bool accumulate;
  bool stream;
};

// Returns the position of the first payload with a code that no encoder sends, or the number of payloads.
size_t decode_codes(const CodeFormat& format, const CodeDecode& run);

}  // namespace gradtune::compress
