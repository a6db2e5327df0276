// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The members of the family that sends the largest elements, their payloads and their state (topk.cc describes the
// contents), for the host and for devices. Internal to engine/compress.
#pragma once

#include "engine/compress/shared.h"

namespace gradtune::compress {

struct TopkMember {
  uint32_t id;
  bool carries_bound, has_momentum;
};
TopkMember topk_member_of(const core::CompressorSpec& spec);

inline constexpr float kTopkMomentum = 0.9F;

// State: the bound of the next step, the number of steps so far, and from there on the momentum of each element.
inline constexpr int64_t kTopkMomentumAt = 16;
inline constexpr uint32_t kTopkMostSteps = 200;  // more change nothing

struct TopkLayout {
  int64_t k, blocks, starts_at, positions_at, values_at, bytes;

  TopkLayout(const core::CompressorSpec& spec, int64_t n)
      : k(share_of(spec.parameter, n)),
        blocks((n + kBlockElements - 1) / kBlockElements),
        starts_at(sizeof(PayloadHeader)),
        positions_at(starts_at + section_bytes(blocks * 4)),
        values_at(positions_at + section_bytes(k * 2)),
        bytes(values_at + section_bytes(k * 2)) {}
};

// The result of a selection: the number of elements that reached the bound; the bits of |p| of the bound and of the
// smallest sent element; the number of sent elements, at most k.
struct TopkOutcome {
  int64_t found, bound, threshold, count, k;
};

// The bound to carry: a little fewer than k elements should reach it if the next step is like this one. Bits of
// floats are nearly logarithms, so distances are measured in bits; a unit in the exponent is a factor of 2.
constexpr uint32_t next_topk_bound(const TopkOutcome& of) {
  constexpr int64_t kUnit = 1 << 23;
  const int64_t wanted = of.k - of.k / 16;
  if (of.threshold <= 1) return 0;  // fewer than k are not zero
  int64_t above = 0;                // distance of the next bound from the threshold
  if (of.found == of.count) {
    above = (of.found - wanted) * (kUnit / 8) / of.k;
  } else if (of.found > of.k && of.threshold > of.bound) {
    const int64_t span = of.threshold - of.bound;
    above = std::min(span * (of.k - wanted) / (of.found - of.k), kUnit / 8);
  }
  return static_cast<uint32_t>(std::clamp<int64_t>(of.threshold + above, 1, kInfinityBits));
}

}  // namespace gradtune::compress
