// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Gradients made a share of the average, in place: what a plain sum needs before it, in the baseline as well. One pass,
// with the same bits for every number of threads and every SIMD target. Numbers of 16 bits are for the codec of their
// type (compressor.h).
#pragma once

#include <span>

#include "engine/compress/compressor.h"

namespace gradtune::compress {

struct Scaling {
  std::span<float> values;
  const float* residual = nullptr;  // null, or as many elements, which are added first; then nothing is left of them:
  float* residual_next = nullptr;   // ... zeros are written here. Other memory; null as residual is
  float factor = 1;
  Verdict* verdict = nullptr;  // never null; a result that is not finite is told there
};

// values[i] = (values[i] + residual[i]) * factor.
void scale(const Scaling& job, Queue& queue);

// The same of double precision, of which no residual is kept.
struct DoubleScaling {
  std::span<double> values;
  double factor = 1;
  Verdict* verdict = nullptr;
};
void scale(const DoubleScaling& job, Queue& queue);

}  // namespace gradtune::compress
