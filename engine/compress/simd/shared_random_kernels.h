// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Random bits that all ranks have alike, of many elements at once. Internal to engine/compress.
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

// Of each of them the kSharedWords words of shared_random, one element's behind the other's.
void shared_random_of(const Random& random, const SharedElements& elements, uint32_t* words);

// Strata of `size` elements that follow one another, counted from anywhere: the first begins at `begin`. Each
// kSharedWords of them have the words of one element: `element` the first, and those that begin as many strata behind
// it.
struct SharedStrata {
  int64_t begin, size;  // size < 2^32
  int64_t element;
  size_t words_of;  // as many elements' words
};

// An element of each stratum: that which the upper bits of word * size say, counted as `begin` is.
void draw_from_strata(const Random& random, const SharedStrata& strata, int64_t* drawn);

}  // namespace gradtune::compress
