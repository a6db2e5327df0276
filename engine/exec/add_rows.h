// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Adds the rows of a matrix, as they arrived, to the dense matrix.
#pragma once

#include <cstddef>

#include "engine/core/gradient_table.h"
#include "engine/exec/arrived.h"
#include "engine/exec/program.h"

namespace gradtune::exec {

// Adds the rows that belong to a piece of that tensor, in the given order, to the piece, whose first element lies at
// `to`. Throws if a row number is not one of the tensor's.
void add_rows(const Arrived& arrived, const core::TensorInfo& tensor, const Piece& piece, std::byte* to);

}  // namespace gradtune::exec
