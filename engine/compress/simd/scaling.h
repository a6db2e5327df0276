// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Scales gradients to their share of the average, in place, as a plain sum needs it, in the baseline as well. It
// takes one pass, with the same bits for every number of threads and every SIMD target. Numbers of 16 bits are scaled
// by the codec of their type (compressor.h).
#pragma once

#include <span>

#include "engine/compress/compressor.h"

namespace gradtune::compress {

struct Scaling {
  std::span<float> values;
  const float* residual = nullptr;  // null, or as many elements, which are added first and are used up by that:
  float* residual_next = nullptr;   // ... zeros are written here, in other memory; null if residual is null
  float factor = 1;
  Verdict* verdict = nullptr;  // never null; it records a result that is not finite
};

// values[i] = (values[i] + residual[i]) * factor.
void scale(const Scaling& job, Queue& queue);

// The same for double precision, which has no residual.
struct DoubleScaling {
  std::span<double> values;
  double factor = 1;
  Verdict* verdict = nullptr;
};
void scale(const DoubleScaling& job, Queue& queue);

}  // namespace gradtune::compress
