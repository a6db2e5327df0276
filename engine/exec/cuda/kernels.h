// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What computes on a CUDA device: the compressors of engine/compress/cuda, and what executors need besides. Tests run
// the same kernels on the host; on a GPU they have not run so far.
#pragma once

#include <memory>

#include "engine/exec/kernels.h"

namespace gradtune::exec::cuda {

std::unique_ptr<Kernels> make_kernels();

}  // namespace gradtune::exec::cuda
