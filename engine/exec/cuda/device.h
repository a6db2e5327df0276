// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A device for executors that uses the CUDA runtime alone, for programs without LibTorch (hooks/ have LibTorch's
// streams). Compiled if nvcc is available.
#pragma once

#include <memory>

#include "engine/core/clock.h"
#include "engine/core/result.h"
#include "engine/exec/device.h"

namespace gradtune::exec::cuda {

struct CudaDeviceOptions {
  int device = 0;
  void* current = nullptr;  // the cudaStream_t of the threads that compute; null: the default stream
  // One in so many marks of a stream has a time. 1: all marks; 0: none.
  int times_every = 1;
};

// Returns an error if there is no driver or no such device. `clock` outlives the device.
core::Result<std::unique_ptr<Device>> make_cuda_device(const CudaDeviceOptions& options, const core::Clock& clock);

}  // namespace gradtune::exec::cuda
