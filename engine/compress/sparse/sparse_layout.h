// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The members of the sparse family, and the places of the parts of their payloads (sparse.cc describes them), for the
// host and for devices. Internal to engine/compress.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/compress/shared.h"

namespace gradtune::compress {

// The unit that is sent or left out as a whole.
enum class Grain : uint8_t { row, element, block };

constexpr uint32_t sparse_id(Grain grain) {
  return grain == Grain::row ? compressor_id("rows") : compressor_id(grain == Grain::element ? "coo " : "blks");
}

// The number of elements of a unit, for rows of `row` elements; 0: not known. In a matrix no unit crosses the end of
// a row.
constexpr int64_t unit_width(Grain grain, const core::CompressorSpec& spec, int64_t row) {
  if (grain == Grain::row) return std::max<int64_t>(row, 1);
  if (grain == Grain::element) return 1;
  const auto block = static_cast<int64_t>(spec.parameter);
  return row % block == 0 ? block : row;
}

// n elements in units of `width`, of which the last one may be shorter.
struct SparseShape {
  constexpr explicit SparseShape(int64_t elements = 0, int64_t unit_width = 1)
      : n(elements), width(unit_width), units((elements + unit_width - 1) / unit_width) {}

  int64_t n, width, units;

  constexpr int64_t end_of(int64_t unit) const { return std::min(n, (unit + 1) * width); }  // elements

  // Units of a task, whose bits are words of their own.
  constexpr int64_t run() const { return std::max<int64_t>(1024, kBlockElements / width / 64 * 64); }
  constexpr int64_t runs() const { return (units + run() - 1) / run(); }
  constexpr int64_t words() const { return (units + 63) / 64; }
};

enum class SparseForm : uint32_t { dense, list, bitmap };

struct SparseHeader {
  uint32_t count;  // number of kept units
  SparseForm form;
  uint32_t width;
  uint32_t zero;
};
static_assert(sizeof(SparseHeader) == 16);

inline constexpr int64_t kSparseHeaderBytes = sizeof(PayloadHeader) + sizeof(SparseHeader);

// Room for all n elements, in the dense form.
constexpr int64_t sparse_payload_bytes(int64_t n) { return section_bytes(kSparseHeaderBytes + 4 * n); }

// Offsets and sizes in bytes.
struct SparseLayout {
  SparseForm form = SparseForm::dense;
  int64_t starts_at = 0, starts_bytes = 0, index_at = 0, index_bytes = 0, values_at = 0, values_bytes = 0;
  int64_t bytes = 0;  // used
};

// `has_last`: the last unit, which may be shorter, is kept.
constexpr SparseLayout sparse_layout(SparseForm form, const SparseShape& shape, int64_t count, bool has_last) {
  SparseLayout layout;
  layout.form = form;
  layout.starts_at = kSparseHeaderBytes;
  if (form == SparseForm::bitmap) layout.starts_bytes = shape.runs() * 4;
  layout.index_at = layout.starts_at + section_bytes(layout.starts_bytes);
  layout.index_bytes = form == SparseForm::list ? count * 4 : form == SparseForm::bitmap ? shape.words() * 8 : 0;
  layout.values_at = layout.index_at + section_bytes(layout.index_bytes);
  const int64_t missing = has_last ? shape.units * shape.width - shape.n : 0;
  layout.values_bytes = 4 * (form == SparseForm::dense ? shape.n : count * shape.width - missing);
  layout.bytes = section_bytes(layout.values_at + layout.values_bytes);
  return layout;
}

// The layout of the form that takes the fewest bytes.
constexpr SparseLayout choose_layout(const SparseShape& shape, int64_t count, bool has_last) {
  SparseLayout best = sparse_layout(SparseForm::dense, shape, count, has_last);
  const SparseLayout list = sparse_layout(SparseForm::list, shape, count, has_last);
  if (list.bytes < best.bytes) best = list;
  const SparseLayout bitmap = sparse_layout(SparseForm::bitmap, shape, count, has_last);
  return bitmap.bytes < best.bytes ? bitmap : best;
}

}  // namespace gradtune::compress
