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

}  // namespace gradtune::compress
