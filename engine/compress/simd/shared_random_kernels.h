// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Random bits that are the same on all ranks, for many elements at once. Internal to engine/compress.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/compress/compressor.h"

namespace gradtune::compress {

inline constexpr size_t kSharedWords = 4;

// The elements first, first + step, and so on.
struct SharedElements {
  int64_t first, step;
  size_t n;
};

// Writes the kSharedWords words of shared_random for each element, one element after the other.
void shared_random_of(const Random& random, const SharedElements& elements, uint32_t* words);

// Consecutive strata of `size` elements; the first begins at position `begin`, counted from any origin. Each
// kSharedWords strata share the words of one element: `element` for the first such group, and the element at the
// start of each later group.
struct SharedStrata {
  int64_t begin, size;  // size < 2^32
  int64_t element;
  size_t words_of;  // the number of elements whose words are drawn
};

// Draws one position of each stratum, which the upper bits of word * size choose. It is counted from the origin of
// `begin`.
void draw_from_strata(const Random& random, const SharedStrata& strata, int64_t* drawn);

}  // namespace gradtune::compress
