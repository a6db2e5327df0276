// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What computes on a CUDA device: the compressors of engine/compress/cuda, and what executors need besides. Tests run
// the same kernels on the host, and on a GPU where there is one.
#pragma once

#include <memory>

#include "engine/core/result.h"
#include "engine/exec/kernels.h"

namespace gradtune::exec::cuda {

// An error where there is no such device, or one that kernels were not compiled for.
core::Result<std::unique_ptr<Kernels>> make_kernels(int device);

}  // namespace gradtune::exec::cuda
