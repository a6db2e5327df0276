// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Kernels of the compressors that leave out zeros. Internal to engine/compress.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/compress/shared.h"

namespace gradtune::compress {

// Of the n elements gradient + residual (or null): sets a bit for each unit of `width`, the last one perhaps shorter,
// that has a bit which is not zero; 64 units a word. Returns how many.
uint32_t mark_units(const float* gradient, const float* residual, size_t n, size_t width, uint64_t* bits);

// Writes scale * p of the elements of the run whose bits are set, one behind the other; returns the bits of the largest
// |scale * p|.
uint32_t write_marked(const EncodeRun& run, const uint64_t* bits, float* to);

// sums[i] = +0 + values[i]
void begin_sums(const float* values, size_t n, float* sums);

// sums[i] += values[i]
void add_values(const float* values, size_t n, float* sums);

}  // namespace gradtune::compress
