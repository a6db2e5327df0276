// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Kernels of the compressors that send signs: one pass over a run of blocks. Internal to engine/compress.
//
// A sign is a bit, least significant bit first: 1 = negative. -0 counts as negative, as it does in the error, so that
// encoder and decoders agree. A block has one scale, or two: the magnitudes of its positive and of its negative
// elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/compress/shared.h"
#include "engine/compress/simd/momentum.h"

namespace gradtune::compress {

enum class SignScales : uint8_t {
  mean,   // one: the mean magnitude of the block
  means,  // two: the mean magnitudes of either side, 0 for an empty one
  vote,   // one: `scale` itself with 12 bits of precision, so that sums of up to 4096 votes are exact
};
constexpr int64_t scales_per_block(SignScales scales) { return scales == SignScales::means ? 2 : 1; }

// The destination of an encoded run of whole blocks; only the last block of the bucket may be shorter.
struct SignTarget {
  SignScales kind;
  float* scales;      // of each block
  std::byte* bits;    // zero behind the last element
  size_t block;       // elements, a multiple of 8
  Momentum momentum;  // of votes: if any, it is encoded instead of gradient + residual
  bool stream;
};

// Returns false if a sum of |p| times scale or unsent_factor is not finite; sums are over blocks, or over parts of
// blocks of votes. A scale that is not finite is written as zero.
bool encode_signs(const EncodeRun& run, const SignTarget& to);

struct SignDecode {
  SignScales kind;
  std::span<const std::span<const std::byte>> payloads;  // at least one
  size_t scales_at, bits_at;  // bytes from the start of each payload to this run's scales and bits
  float* out;
  size_t block, n;  // whole blocks, but for the last one of the bucket
  bool accumulate;
  bool stream;
};

void decode_signs(const SignDecode& run);

}  // namespace gradtune::compress
