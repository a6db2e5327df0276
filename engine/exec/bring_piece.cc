// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/bring_piece.h"

#include <span>

#include "engine/compress/simd/scaling.h"
#include "engine/exec/add_rows.h"

namespace gradtune::exec {
namespace {

void scale(const PieceJob& job, const std::byte* from, compress::Queue& queue) {
  const auto n = static_cast<size_t>(job.piece.length);
  if (from == job.to) {
    const std::span<float> values{reinterpret_cast<float*>(job.to), n};
    return compress::scale({.values = values, .factor = job.factor, .verdict = job.verdict}, queue);
  }
  job.bucket.plain[core::Space::host]->encode({.gradient = {reinterpret_cast<const float*>(from), n},
                                               .scale = job.factor,
                                               .payload = {job.to, n * sizeof(float)},
                                               .scratch = {},
                                               .verdict = job.verdict},
                                              queue);
}

}  // namespace

bool can_scale_pieces(const BucketProgram& bucket) {
  const Op& first = bucket.ops.front();
  const auto* const scale = first.as<Scale>();
  return scale != nullptr && !scale->residual && first.place == core::Place::device &&
         first.space == core::Space::host && bucket.space == core::Space::host && bucket.dtype == core::DType::f32 &&
         bucket.staged == 0;
}

void bring_piece(const PieceJob& job, compress::Queue& queue) {
  const int64_t width = core::bytes_per_element(job.bucket.dtype);
  const int64_t bytes = job.piece.length * width;
  const bool scales = job.verdict != nullptr;
  const std::byte* from = job.to;
  if (job.arrived.kind == Arrived::Kind::dense) {
    from = job.arrived.values + job.piece.tensor_begin * width;
    if (!scales) queue.copy(job.to, from, bytes);
  } else if (job.arrived.kind != Arrived::Kind::in_place) {
    queue.fill(job.to, std::byte{0}, bytes);
    if (job.arrived.kind == Arrived::Kind::rows) add_rows(job.arrived, job.tensor, job.piece, job.to);
  }
  if (scales) scale(job, from, queue);
}

}  // namespace gradtune::exec
