// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Kernels of the compressors that leave out zeros. Internal to engine/compress.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/compress/shared.h"

namespace gradtune::compress {

// Sets a bit for each unit of gradient + residual (or null) that has a nonzero bit; 64 units a word. There are n
// elements in units of `width`; the last unit may be shorter. Returns the number of set bits.
uint32_t mark_units(const float* gradient, const float* residual, size_t n, size_t width, uint64_t* bits);

// Writes scale * p of the elements of the run whose bits are set, without gaps. Returns the bits of the largest
// |scale * p|.
uint32_t write_marked(const EncodeRun& run, const uint64_t* bits, float* to);

// sums[i] = +0 + values[i]
void begin_sums(const float* values, size_t n, float* sums);

// sums[i] += values[i]
void add_values(const float* values, size_t n, float* sums);

}  // namespace gradtune::compress
