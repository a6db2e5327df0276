// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Rows of a matrix, as they arrived, added to where the matrix lies.
#pragma once

#include <cstddef>

#include "engine/core/gradient_table.h"
#include "engine/exec/arrived.h"
#include "engine/exec/program.h"

namespace gradtune::exec {

// Adds what arrived of a piece of that tensor, whose first element lies at `to`, in the order told. Throws where a row
// is none of the tensor's.
void add_rows(const Arrived& arrived, const core::TensorInfo& tensor, const Piece& piece, std::byte* to);

}  // namespace gradtune::exec
