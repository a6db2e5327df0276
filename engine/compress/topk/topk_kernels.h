// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Kernels of `topk`, its relatives and `randk`, over one block. Internal to engine/compress.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/compress/simd/momentum.h"
#include "engine/core/float16.h"

namespace gradtune::compress {

// An element that may be among the largest: its position in the bucket, and p there.
struct Candidate {
  uint32_t index;
  float value;
};

static_assert(sizeof(Candidate) == 2 * sizeof(uint32_t));  // as kernels load them

// Buffers leave room for this many more candidates: the scan writes a little beyond those it keeps.
inline constexpr size_t kCandidateSlack = 2;

// The error that is kept of p if bf16(scale * p) is sent, or if nothing is sent.
struct Errors {
  float scale, error_scale, unsent_factor;

  float of_unsent(float p) const { return unsent_factor * p; }
  float of_sent(float p) const {
    return unsent_factor * p - error_scale * core::widen_bf16(core::narrow_bf16(scale * p));
  }
};

struct TopkScan {
  const float* gradient;
  const float* residual;  // or null: p = gradient
  size_t n;
  uint32_t index;  // of the first element
  uint32_t bound;  // keeps elements whose bits of |p| are >= bound
  Errors errors;
  Momentum momentum;  // if any, it replaces the gradient; the next one is zero at candidates
  float* kept;        // or null; the errors of all elements are written there, as if all candidates were sent
  bool stream;
};

// The number of candidates, and the largest of the bits of their |p|.
struct Scanned {
  size_t count;
  uint32_t largest;
};

// Writes candidates in ascending order. There may be n of them, plus slack.
Scanned scan_topk(const TopkScan& block, Candidate* candidates);

// Writes the entries of all candidates of a block: positions relative to `first`, and scale * p as bfloat16.
struct SendAll {
  const Candidate* candidates;
  size_t n;
  uint32_t first;
  float scale;
};
void send_all(const SendAll& job, uint16_t* positions, uint16_t* values);

// The errors of elements that are not sent. Returns the largest of the bits of |p|.
struct Unsent {
  const float* gradient;
  const float* residual;  // or null: p = gradient
  float factor;
  float* errors;  // factor * p; null: none are written
  bool add;       // to the values there
  size_t n;
  bool stream;
};
uint32_t keep_unsent(const Unsent& block);

// The part of a payload that belongs to a block: positions in it, and values as bfloat16.
struct TopkBlock {
  const uint16_t* positions;
  const uint16_t* values;
  uint32_t n;
};

// True if positions ascend and are below the length of the block.
bool is_ascending(const TopkBlock& block, uint32_t length);

// sums[position] += value, for the positions in [begin, end) of a block with ascending positions. `sums` has the sums
// of the whole block, of which only those in [begin, end) are touched.
void add_topk(const TopkBlock& block, uint32_t begin, uint32_t end, float* sums);

}  // namespace gradtune::compress
