// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Momentum of the gradients so far, for compressors that encode it. It is a mean in which each gradient weighs
// `decay` times as much as the next one. Internal to engine/compress.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradtune::compress {

// next = decay * before + (1 - decay) * p.
struct Momentum {
  const float* before = nullptr;  // null: there is no momentum yet
  float* next = nullptr;          // null: it is not kept
  float decay = 0;

  Momentum from(int64_t i) const {
    if (before == nullptr) return {};
    return {before + i, next == nullptr ? nullptr : next + i, decay};
  }
  // The next momentum of one element, rounded as by update_momentum (momentum-inl.h).
  float of(float old, float p) const { return old * decay + p * (1 - decay); }
};

}  // namespace gradtune::compress
