// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Kernels of the compressors that send one number per element: one pass over one block. Internal to engine/compress.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/compress/shared.h"
#include "engine/core/gradient_table.h"

namespace gradtune::compress {

// The bits of the largest |x| such that x in the wire type, and the sum of `summed` numbers as large, are finite in
// any order of rounding.
uint32_t largest_that_sums(core::DType wire, int summed);  // dense.cc

// Writes the codes of the run and returns the bits of the largest |scale * p|. `stream`: past the caches.
uint32_t encode_dense(core::DType wire, const EncodeRun& run, std::byte* codes, bool stream);

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
