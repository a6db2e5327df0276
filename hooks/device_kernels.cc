// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/device_kernels.h"

#include <string>

#include "hooks/c10d/torch_versions.h"

#ifdef GRADTUNE_HAS_CUDA
#include "engine/exec/cuda/kernels.h"
#endif

namespace gradtune {

core::Result<std::unique_ptr<exec::Kernels>> kernels_for(c10::Device device) {
  if (!device.is_cuda()) {
    return core::Error{core::Error::Code::invalid, "gradtune has kernels for CUDA devices only"};
  }
  if (!versions::kNoStreams.empty()) {
    return core::Error{core::Error::Code::invalid, std::string(versions::kNoStreams)};
  }
#ifdef GRADTUNE_HAS_CUDA
  return exec::cuda::make_kernels(device.index());
#else
  return core::Error{core::Error::Code::invalid, "this build has no kernels for CUDA devices, since it found no nvcc"};
#endif
}

}  // namespace gradtune
