// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Copies a piece of an arrived gradient to its place in the arena. If its bucket begins with a scale, the piece is
// scaled on the way: in the pass that copies it, or while it is in a cache.
#pragma once

#include <cstddef>

#include "engine/compress/compressor.h"
#include "engine/compress/queue.h"
#include "engine/core/gradient_table.h"
#include "engine/exec/arrived.h"
#include "engine/exec/program.h"

namespace gradtune::exec {

// True if pieces of that bucket can be scaled as they arrive, unless residuals are to be added to the gradient first.
bool can_scale_pieces(const BucketProgram& bucket);

struct PieceJob {
  const BucketProgram& bucket;
  const core::TensorInfo& tensor;
  const Piece& piece;
  const Arrived& arrived;
  std::byte* to;                         // the place of the piece
  float factor = 1;                      // used if there is a verdict
  compress::Verdict* verdict = nullptr;  // of the scale; null: the piece is not scaled
};
void bring_piece(const PieceJob& job, compress::Queue& queue);

}  // namespace gradtune::exec
