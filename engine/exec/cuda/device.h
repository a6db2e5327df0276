// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// An executor's device over the CUDA runtime alone, for programs without LibTorch (hooks/ have LibTorch's streams).
// Compiled where there is nvcc.
#pragma once

#include <memory>

#include "engine/core/clock.h"
#include "engine/core/result.h"
#include "engine/exec/device.h"

namespace gradtune::exec::cuda {

struct CudaDeviceOptions {
  int device = 0;
  void* current = nullptr;  // the cudaStream_t of the threads that compute; null: the default stream
  // Every so many marks of a stream have a time. 1: all; 0: none.
  int times_every = 1;
};

// An error where there is no driver or no such device. `clock` outlives it.
core::Result<std::unique_ptr<Device>> make_cuda_device(const CudaDeviceOptions& options, const core::Clock& clock);

}  // namespace gradtune::exec::cuda
