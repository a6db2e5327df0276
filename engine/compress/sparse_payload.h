// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Where the parts of a sparse payload lie (sparse.cc says what they are), whether they hold together, and a walk over
// the units that are there. Internal to engine/compress.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "engine/compress/shared.h"

namespace gradtune::compress {

// n elements in units of `width`, of which the last one may be shorter.
struct SparseShape {
  explicit SparseShape(int64_t elements = 0, int64_t unit_width = 1)
      : n(elements), width(unit_width), units((elements + unit_width - 1) / unit_width) {}

  int64_t n, width, units;

  int64_t end_of(int64_t unit) const { return std::min(n, (unit + 1) * width); }  // elements

  // Units of a task, whose bits are words of their own.
  int64_t run() const { return std::max<int64_t>(1024, kBlockElements / width / 64 * 64); }
  int64_t runs() const { return (units + run() - 1) / run(); }
  int64_t words() const { return (units + 63) / 64; }
};

enum class SparseForm : uint32_t { dense, list, bitmap };

struct SparseHeader {
  uint32_t count;  // units that are there
  SparseForm form;
  uint32_t width;
  uint32_t zero;
};
static_assert(sizeof(SparseHeader) == 16);

// Bytes.
struct SparseLayout {
  SparseForm form = SparseForm::dense;
  int64_t starts_at = 0, starts_bytes = 0, index_at = 0, index_bytes = 0, values_at = 0, values_bytes = 0;
  int64_t bytes = 0;  // used
};

// `has_last`: the last unit is there, which may be shorter.
SparseLayout sparse_layout(SparseForm form, const SparseShape& shape, int64_t count, bool has_last);

// The form that takes least.
SparseLayout choose_layout(const SparseShape& shape, int64_t count, bool has_last);

// Used, where that share of the units is there.
int64_t sparse_bytes_at(const SparseShape& shape, double share);

int64_t sparse_least_bytes();             // of headers alone
int64_t sparse_payload_bytes(int64_t n);  // room for all
int64_t sparse_used_bytes(std::span<const std::byte> payload);

// What is wrong with a payload whose frame was checked; nothing where it can be walked over.
std::optional<std::string> defect_of_sparse(std::span<const std::byte> payload, const SparseShape& shape,
                                            HostQueue& queue);

// Calls body(i) for the bits that are set of [begin, end); `begin` is a multiple of 64.
template <typename Body>
void for_bits(const uint64_t* bits, int64_t begin, int64_t end, Body&& body) {
  for (int64_t first = begin; first < end; first += 64) {
    for (uint64_t word = bits[first / 64]; word != 0; word &= word - 1) body(first + std::countr_zero(word));
  }
}

// The units of a payload without defects, ascending. In the dense form those that have a bit that is not zero.
class SparseView {
 public:
  SparseView() = default;
  SparseView(std::span<const std::byte> payload, const SparseShape& shape);

  // To the first unit from that one on, a multiple of run() of the shape.
  void seek(int64_t unit);
  void next() {
    ++rank_;
    find(unit_ + 1);
  }
  int64_t unit() const { return unit_; }  // that of `units` behind the last
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
