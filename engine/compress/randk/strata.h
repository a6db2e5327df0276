// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The strata of `randk` (randk.cc): n elements are cut into k runs whose sizes differ by at most one, and each run
// sends one element. Internal to engine/compress.
#pragma once

#include "engine/compress/compressor.h"

namespace gradtune::compress {

struct StrataLimits {
  int64_t n, size, larger;  // elements; elements of a stratum; number of first strata that have one more
  int64_t begin;            // first element of the first stratum; element 0 follows the last element

  // Positions count from `begin` on.
  constexpr int64_t begin_of(int64_t stratum) const { return stratum * size + (stratum < larger ? stratum : larger); }
  constexpr int64_t size_of(int64_t stratum) const { return size + (stratum < larger ? 1 : 0); }
  constexpr int64_t stratum_of(int64_t position) const {
    const int64_t of_larger = larger * (size + 1);
    return position < of_larger ? position / (size + 1) : larger + (position - of_larger) / size;
  }
};

// The strata of a bucket of n > 0 elements.
StrataLimits strata_of(const Work& work, int64_t n, int64_t k);

}  // namespace gradtune::compress
