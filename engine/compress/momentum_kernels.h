// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The kernel of compressors that keep momentum, over one block. Internal to engine/compress.
#pragma once

#include <cstddef>

namespace gradtune::compress {

// next = decay * before + gain * (gradient + residual).
struct Momentum {
  const float* before;
  const float* gradient;
  const float* residual;  // or null
  float* next;
  float decay, gain;
  size_t n;
};
void update_momentum(const Momentum& block);

}  // namespace gradtune::compress
