// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Writes a block of results that was made in the cache to memory, for code that is no SIMD kernel itself or has no
// tiles (class Output of simd-inl.h). Internal to engine/compress.
#pragma once

#include <cstddef>

namespace gradtune::compress {

// Copies n floats. They go past the caches if the whole result is so large that it would only displace other data
// (kStreamBytes).
void write_floats(const float* from, float* to, size_t n, bool past_caches);

// Copies n floats past the caches and overwrites the source with zeros. Streaming stores are not ordered with later
// stores: the caller has to flush them (hwy::FlushStream).
void stream_and_clear(float* from, float* to, size_t n);

}  // namespace gradtune::compress
