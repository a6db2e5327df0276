// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Random bits that all ranks have alike, of many elements at once. Internal to engine/compress.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/compress/compressor.h"

namespace gradtune::compress {

// Of each of n elements the kSharedWords words of shared_random, one element's behind the other's.
inline constexpr size_t kSharedWords = 4;
void shared_random_of(const Random& random, const int64_t* elements, size_t n, uint32_t* words);

}  // namespace gradtune::compress
