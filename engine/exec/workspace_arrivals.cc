// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Copies arriving gradients to their places in the arenas.
#include <span>

#include "engine/compress/simd/scaling.h"
#include "engine/exec/add_rows.h"
#include "engine/exec/workspace.h"

namespace gradtune::exec {

bool Workspace::arrived(int32_t tensor, const Piece& piece, const Arrived& arrived, compress::Queue& queue) {
  const BucketProgram& bucket = this->bucket(piece.bucket);
  const int64_t width = core::bytes_per_element(bucket.dtype);
  std::byte* const to = arenas_[static_cast<size_t>(bucket.arena)].data + piece.arena_begin * width;
  if (RowState* const rows = rows_[static_cast<size_t>(piece.bucket)].get()) {
    rows->arrived = arrived;
  } else {
    const bool scales = scales_arrivals(piece.bucket);
    const std::byte* from = to;
    if (arrived.kind == Arrived::Kind::dense) {
      from = arrived.values + piece.tensor_begin * width;
      if (!scales) queue.copy(to, from, piece.length * width);
    } else if (arrived.kind != Arrived::Kind::in_place) {
      queue.fill(to, std::byte{0}, piece.length * width);
      if (arrived.kind == Arrived::Kind::rows) {
        add_rows(arrived, table_.tensors[static_cast<size_t>(tensor)], piece, to);
      }
    }
    if (scales) scale_piece(piece, from, to, queue);
  }
  return --missing_tensors_[static_cast<size_t>(piece.bucket)] == 0;
}

// Residuals are added to the unscaled gradient, so a bucket that owes some is not scaled as it arrives.
bool Workspace::scales_arrivals(int32_t bucket) const {
  const BucketProgram& program = this->bucket(bucket);
  const Op& first = program.ops.front();
  return first.kind == Op::Kind::scale && first.place == core::Place::device && first.space == core::Space::host &&
         program.space == core::Space::host && program.dtype == core::DType::f32 && program.staged == 0 &&
         !first.residual && !owes(bucket);
}

void Workspace::scale_piece(const Piece& piece, const std::byte* from, std::byte* to, compress::Queue& queue) {
  const BucketProgram& program = bucket(piece.bucket);
  const auto n = static_cast<size_t>(piece.length);
  const float factor = 1.0F / static_cast<float>(seat_.size);
  compress::Verdict* const verdict = &verdicts_[static_cast<size_t>(program.first_op)];
  if (from == to) {
    const std::span<float> values{reinterpret_cast<float*>(to), n};
    return compress::scale({.values = values, .factor = factor, .verdict = verdict}, queue);
  }
  program.plain[core::Space::host]->encode({.gradient = {reinterpret_cast<const float*>(from), n},
                                            .scale = factor,
                                            .payload = {to, n * sizeof(float)},
                                            .scratch = {},
                                            .verdict = verdict},
                                           queue);
}

}  // namespace gradtune::exec
