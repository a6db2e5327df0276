// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Kernels of `efsignsgd`: one pass over a run of its blocks. Internal to engine/compress.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gradtune::compress {

struct SignEncode {
  const float* gradient;
  const float* residual;  // or null
  float* residual_next;   // or null
  bool add_to_residual_next;
  float scale, error_scale;
  float unsent_factor;  // what error_scale * scale is meant to be
  float* scales;        // one for each block
  std::byte* bits;      // the sign bits, least significant bit first; zero behind the last element
  size_t block;         // elements, a multiple of 8
  size_t n;             // whole blocks, but for the last one of the bucket
  bool stream;
};

// Returns false when the sum of |p| over a block, times scale or unsent_factor, is not finite. A scale that is not
// finite is written as zero.
bool encode_signs(const SignEncode& run);

struct SignDecode {
  std::span<const std::span<const std::byte>> payloads;  // at least one
  size_t scales_at, bits_at;  // bytes from the start of each payload to this run's scales and bits
  float* out;
  size_t block, n;  // as above
  bool accumulate;
  bool stream;
};

void decode_signs(const SignDecode& run);

}  // namespace gradtune::compress
