// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Sizes of sparse payloads, checks that their parts are consistent, and a walk over the kept units. Internal to
// engine/compress.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "engine/compress/shared.h"
#include "engine/compress/sparse/sparse_layout.h"

namespace gradtune::compress {

// The used bytes if that share of the units is kept.
int64_t sparse_bytes_at(const SparseShape& shape, double share);

int64_t sparse_used_bytes(std::span<const std::byte> payload);

// The defect of a payload whose frame was checked; nullopt if it can be walked over.
std::optional<std::string> defect_of_sparse(std::span<const std::byte> payload, const SparseShape& shape,
                                            HostQueue& queue);

// Calls body(i) for the set bits in [begin, end); `begin` is a multiple of 64.
template <typename Body>
void for_bits(const uint64_t* bits, int64_t begin, int64_t end, Body&& body) {
  for (int64_t first = begin; first < end; first += 64) {
    for (uint64_t word = bits[first / 64]; word != 0; word &= word - 1) body(first + std::countr_zero(word));
  }
}

// The first unit in [from, end) whose bit equals `is_set`; `end` if there is none.
inline int64_t find_bit(const uint64_t* bits, int64_t from, int64_t end, bool is_set) {
  while (from < end) {
    const uint64_t word = (is_set ? bits[from / 64] : ~bits[from / 64]) >> (from % 64);
    if (word != 0) return std::min(end, from + std::countr_zero(word));
    from = (from / 64 + 1) * 64;
  }
  return end;
}

// Calls body(first, last) for the longest ranges [first, last) of set bits in [begin, end).
template <typename Body>
void for_streaks(const uint64_t* bits, int64_t begin, int64_t end, Body&& body) {
  for (int64_t last = begin;;) {
    const int64_t first = find_bit(bits, last, end, true);
    if (first == end) return;
    last = find_bit(bits, first, end, false);
    body(first, last);
  }
}

// The units of a payload without defects, ascending. In the dense form, the units that have a nonzero bit.
class SparseView {
 public:
  SparseView() = default;
  SparseView(std::span<const std::byte> payload, const SparseShape& shape);

  // Adds the units of [begin, end), a run of the shape, to sums of their elements; `begin` is a multiple of run().
  // Other elements are left alone, or zero is added to them.
  void add_run(int64_t begin, int64_t end, float* sums) const;

  // Moves to the first unit from `unit` on, a multiple of run() of the shape.
  void seek(int64_t unit);
  void next() {
    ++rank_;
    find(unit_ + 1);
  }
  int64_t unit() const { return unit_; }  // equals `units` behind the last one
  const float* values() const { return values_ + (form_ == SparseForm::dense ? unit_ : rank_) * shape_.width; }

 private:
  void find(int64_t from);

  SparseShape shape_;
  SparseForm form_ = SparseForm::dense;
  int64_t count_ = 0;
  const uint32_t *starts_ = nullptr, *list_ = nullptr;
  const uint64_t* bits_ = nullptr;
  const float* values_ = nullptr;
  int64_t unit_ = 0, rank_ = 0;
};

}  // namespace gradtune::compress
