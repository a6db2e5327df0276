// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The work of a workspace on lists of rows (program.h) outside of operations.
#include <algorithm>
#include <cstring>

#include "engine/exec/add_rows.h"
#include "engine/exec/workspace.h"

namespace gradtune::exec {

// Writes the gradient to its place in the arena, where residuals of other strategies are added to it.
void Workspace::lay_out(int32_t bucket) {
  const BucketProgram& program = this->bucket(bucket);
  std::byte* const gradient = memory_of(bucket).gradient;
  const core::TensorInfo& tensor =
      table_.tensors[static_cast<size_t>(program_->strategy.buckets[static_cast<size_t>(bucket)].slices[0].tensor)];
  Arrived& arrived = rows_[static_cast<size_t>(bucket)]->arrived;
  const auto bytes = static_cast<size_t>(program.numel) * sizeof(float);
  if (arrived.kind == Arrived::Kind::in_place) return;
  if (arrived.kind == Arrived::Kind::dense) {
    std::memcpy(gradient, arrived.values, bytes);
  } else {
    std::memset(gradient, 0, bytes);
    if (arrived.kind == Arrived::Kind::rows) add_rows(arrived, tensor, {.length = program.numel}, gradient);
  }
  arrived = {};
}

Workspace::Listed Workspace::listed(int32_t tensor) const {
  const std::vector<Piece>& pieces = this->pieces(tensor);
  if (pieces.size() != 1) return {};
  const RowState* const rows = rows_[static_cast<size_t>(pieces[0].bucket)].get();
  if (rows == nullptr) return {};
  const RowLists& lists = *bucket(pieces[0].bucket).lists;
  return {&rows->lists[static_cast<size_t>(lists.result)], &rows->order, lists.width, rows->own};
}

// For a bucket that works on lists.
bool Workspace::came_dense(int32_t bucket) const {
  const RowState* const rows = rows_[static_cast<size_t>(bucket)].get();
  if (rows == nullptr) return false;
  return rows->arrived.kind == Arrived::Kind::in_place || rows->arrived.kind == Arrived::Kind::dense;
}

// Writes the average to its place.
void Workspace::write_list(int32_t bucket) {
  const RowState& rows = *rows_[static_cast<size_t>(bucket)];
  const RowLists& lists = *this->bucket(bucket).lists;
  auto* const gradient = reinterpret_cast<float*>(memory_of(bucket).gradient);
  std::fill(gradient, gradient + lists.rows * lists.width, 0.0F);
  compress::spread(rows.lists[static_cast<size_t>(lists.result)], lists.width, rows.order, gradient);
}

void Workspace::lay_out_average(int32_t tensor) {
  if (listed(tensor).rows == nullptr) return;
  const int32_t bucket = pieces(tensor)[0].bucket;
  if (!came_dense(bucket)) write_list(bucket);
}

}  // namespace gradtune::exec
