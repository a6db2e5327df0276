// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The kernels of gradtune for devices. A build has kernels for CUDA devices if it found nvcc.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "engine/core/result.h"
#include "engine/exec/kernels.h"

namespace gradtune {

// An error that says why, if there are no kernels for the device.
core::Result<std::unique_ptr<exec::Kernels>> kernels_for(c10::Device device);

}  // namespace gradtune
