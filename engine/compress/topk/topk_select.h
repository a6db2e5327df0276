// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The selection of `topk` and its relatives: the k elements of the largest |p|, ascending by index. Ties go to the
// lower index. The result is the same for every number of threads. Internal to engine/compress.
//
// The usual case takes one pass over memory. A bound that a little more than k elements should reach is guessed from
// a sample. The pass collects the candidates, which reach the bound, and writes the error of every element as if
// exactly the candidates were sent. All other work touches candidates only: threshold by a histogram of |p|, counts,
// payload, and errors of candidates that are not sent. If the guess was wrong, or too many elements are equal, blocks
// are scanned again instead, which is slower and gives the same result.
//
// A bound that is carried from step to step needs no sample. With it fewer than k elements suffice, if they are at
// least half as many: all elements that reach it are sent, and no threshold has to be found. So the bound aims a
// little below k. If even fewer reach it, a sample is taken after all.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>

#include "engine/compress/compressor.h"
#include "engine/compress/shared.h"
#include "engine/compress/simd/momentum.h"
#include "engine/compress/topk/topk_kernels.h"

namespace gradtune::compress {

class TopkSelection {
 public:
  static int64_t scratch_bytes(int64_t n, int64_t k);

  // The state that the previous step left.
  struct Carried {
    uint32_t bound = 0;  // as bits of |p|; 0: none
    Momentum momentum;   // if any, it replaces the gradient, and the next one is zero at sent elements
  };

  // 0 < k <= n.
  TopkSelection(const Encode& job, int64_t k, const Carried& carried, HostQueue& queue);

  // The destination of the k elements, in ascending order. `starts` has for each block of kBlockElements the number
  // of elements sent before it; `positions` are relative to their block. `values` are scale * p as bfloat16, whose
  // rounding is part of the error.
  struct Sent {
    uint32_t* starts;
    uint16_t* positions;
    uint16_t* values;
  };

  // Writes these and the next residual. False if a value or an error is not finite.
  bool run(const Sent& sent);

  // The number of sent elements: k, or fewer by a carried bound.
  int64_t count() const { return count_; }

  // The bound to carry: a little fewer than k elements should reach it if the next step is like this one.
  uint32_t next_bound() const;

 private:
  struct Block;

  int64_t blocks() const { return (n_ + kBlockElements - 1) / kBlockElements; }
  bool banks() const { return job_.residual_next != nullptr && !job_.add_to_residual_next; }
  bool adds() const { return job_.residual_next != nullptr && job_.add_to_residual_next; }
  float momentum_of(int64_t element) const;
  TopkScan scan_of(int64_t block, uint32_t bound) const;
  bool pooled(uint32_t bound) const;
  std::span<const Candidate> candidates(int64_t block, uint32_t bound, Candidate* buffer) const;

  uint32_t guess_bound() const;
  void collect(uint32_t bound);
  uint32_t find_threshold() const;
  void count_bins(uint32_t low, uint32_t high, int shift) const;
  uint32_t select(uint32_t low, uint32_t high, uint32_t rank) const;
  void divide(uint32_t threshold);
  void send(const Candidate& candidate, uint32_t begin, uint32_t at, const Sent& sent) const;
  void send(int64_t block, uint32_t threshold, const Sent& sent) const;
  void keep(const Candidate& candidate, bool is_sent) const;
  void add_unsent(int64_t block, const uint16_t* positions) const;

  const Encode& job_;
  HostQueue& queue_;
  const Carried carried_;
  int64_t n_, k_;
  int64_t count_;
  Errors errors_;

  // Scratch.
  std::span<Candidate> pool_;  // in runs, one for each block
  Block* blocks_;
  std::span<uint32_t> bins_;

  uint32_t bound_ = 1;              // of candidates, as bits of |p|
  uint32_t threshold_ = 0;          // of sent elements
  std::atomic<int64_t> found_ = 0;  // candidates; the pool is usable if all of them fit
  Largest largest_;                 // among them
};

}  // namespace gradtune::compress
