// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Random bits that all ranks have alike, of many elements at once. Internal to engine/compress.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/compress/compressor.h"

namespace gradtune::compress {

// words[i] = shared_random(random, elements[i]).
void shared_random_of(const Random& random, const int64_t* elements, size_t n, std::array<uint32_t, 4>* words);

}  // namespace gradtune::compress
