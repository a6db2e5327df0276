// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Kernels of the compressors that send one number per element: one pass over one block. Internal to engine/compress.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/core/gradient_table.h"

namespace gradtune::compress {

struct DenseEncode {
  const float* gradient;
  const float* residual;  // or null
  float* residual_next;   // or null
  bool add_to_residual_next;
  float scale, error_scale;
  std::byte* codes;  // of this block
  size_t n;
  bool stream;
};

// Returns the bits of the largest |scale * p|.
uint32_t encode_dense(core::DType wire, const DenseEncode& block);

struct DenseDecode {
  std::span<const std::span<const std::byte>> payloads;  // at least one
  size_t first;                                          // position of this block in the payloads
  float* out;
  size_t n;
  bool accumulate;
  bool stream;
};

void decode_dense(core::DType wire, const DenseDecode& block);

}  // namespace gradtune::compress
