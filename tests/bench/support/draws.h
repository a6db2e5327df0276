// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The random bits alone of compressors that round at random: the lower limit of their time.
#pragma once

#include <cstdint>

namespace gradtune::bench {

// Makes the random bits of the elements [begin, end), as an encode does, and leaves them in the cache.
void draw(int64_t begin, int64_t end);

}  // namespace gradtune::bench
