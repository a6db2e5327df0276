// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The strata of `randk` (randk.cc): n elements cut into k runs of equal size, but for one element, of which each sends
// one. Internal to engine/compress.
#pragma once

#include "engine/compress/compressor.h"

namespace gradtune::compress {

struct StrataLimits {
  int64_t n, size, larger;  // elements; those of a stratum; so many strata at first have one more
  int64_t begin;            // the element that the first stratum begins at; behind the last one it goes on at the front

  // Positions count from `begin` on.
  constexpr int64_t begin_of(int64_t stratum) const { return stratum * size + (stratum < larger ? stratum : larger); }
  constexpr int64_t size_of(int64_t stratum) const { return size + (stratum < larger ? 1 : 0); }
  constexpr int64_t stratum_of(int64_t position) const {
    const int64_t of_larger = larger * (size + 1);
    return position < of_larger ? position / (size + 1) : larger + (position - of_larger) / size;
  }
};

// Of a bucket of n > 0 elements.
StrataLimits strata_of(const Work& work, int64_t n, int64_t k);

}  // namespace gradtune::compress
