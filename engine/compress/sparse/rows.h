// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Lists of rows are gradients in which few rows are nonzero; they become payloads without being laid out in full. A
// list holds rows of a range of a matrix, each at most once, at ascending places. core::RowOrder maps a place to a
// row of the matrix. Rows in no list are zero.
//
// A compressor that supports lists (Compressor::rows) makes the same payload of a list as of the gradient that the
// list stands for, with Work::row = width. Sums begin with +0 and add payloads in the order given. So they equal
// those of dense gradients bit for bit, except that a sum of nothing but negative zeros is +0. Work and memory grow
// with the number of listed rows, not with the matrix.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/compress/compressor.h"
#include "engine/core/row_order.h"

namespace gradtune::compress {

struct Rows {
  int64_t first = 0, rows = 0;        // the range's first place, and its number of places
  int64_t width = 1;                  // elements of a row
  std::span<const uint32_t> at = {};  // ascending places within the range
  const float* values = nullptr;      // at.size() x width
};

// Room for a list: `most` rows of `width` elements. Memory that no list has used is never touched.
struct RowBuffer {
  uint32_t* at = nullptr;
  float* values = nullptr;
  int64_t most = 0;
  int64_t count = 0;  // listed
};

struct EncodeRows {
  Rows rows;
  float scale = 1;
  std::span<std::byte> payload;  // payload_bytes of rows x width elements
  Verdict* verdict = nullptr;    // never null
};

struct DecodeRows {
  std::span<const std::span<const std::byte>> payloads;  // of one range, at least one
  int64_t first = 0, rows = 0, width = 1;                // of the range
  RowBuffer* out = nullptr;                              // the sum is appended: the range is behind all listed rows
  Verdict* verdict = nullptr;                            // never null
};

class RowCodec {
 public:
  // Like those of Compressor, on the host; both complete when they return.
  virtual void encode_rows(const EncodeRows& job, HostQueue& queue) const = 0;
  virtual void decode_rows(const DecodeRows& job, HostQueue& queue) const = 0;

  // The defect of the payload at that position, which decode_rows rejected for this job.
  virtual core::Error defect_of_rows(const DecodeRows& job, size_t position) const = 0;

 protected:
  ~RowCodec() = default;
};

// Memory for sorting lists. It grows to the largest size needed, and is kept.
struct RowScratch {
  std::vector<uint64_t> keys, sorted;
};

// Rows as a backward pass leaves them: row numbers are in any order, and repeated rows are to be added up.
struct CooRows {
  std::span<const int64_t> rows;        // numbers of the matrix' rows
  const float* values = nullptr;        // rows.size() x width
  std::span<const int64_t> order = {};  // positions in `rows`, as repeated ones are to be added; empty: as they stand
};

// Lists the rows at their places; repeated rows are added in the given order. An error names a number that is no row.
core::Status collect_rows(const CooRows& from, int64_t width, const core::RowOrder& order, RowBuffer& to,
                          RowScratch& scratch);

// True if a row number occurs more than once in `rows`, for a matrix of `most` rows.
bool has_repeated(std::span<const int64_t> rows, int64_t most, RowScratch& scratch);

// Lists the rows of a matrix that have a nonzero bit.
void collect_dense(const float* matrix, int64_t width, const core::RowOrder& order, RowBuffer& to, RowScratch& scratch);

// The list's row numbers, ascending, each with its position in the list: number << 32 | position, in scratch.keys.
// For matrices of up to 2^32 rows.
std::span<const uint64_t> by_row_number(const RowBuffer& list, const core::RowOrder& order, RowScratch& scratch);

// Writes the rows into a matrix, and leaves its other elements alone.
void spread(const RowBuffer& list, int64_t width, const core::RowOrder& order, float* matrix);

}  // namespace gradtune::compress
