// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The kernels of a CUDA device: the compressors of engine/compress/cuda, and the other kernels that executors need.
// Tests run the same kernels on the host, and on a GPU if there is one.
#pragma once

#include <memory>

#include "engine/core/result.h"
#include "engine/exec/kernels.h"

namespace gradtune::exec::cuda {

// Returns an error if there is no such device, or if the kernels were not compiled for it.
core::Result<std::unique_ptr<Kernels>> make_kernels(int device);

}  // namespace gradtune::exec::cuda
