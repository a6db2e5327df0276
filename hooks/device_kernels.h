// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What gradtune has that computes on a device. A build has kernels for CUDA devices where it found nvcc.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "engine/core/result.h"
#include "engine/exec/kernels.h"

namespace gradtune {

// An error where there are none, which says why.
core::Result<std::unique_ptr<exec::Kernels>> kernels_for(c10::Device device);

}  // namespace gradtune
