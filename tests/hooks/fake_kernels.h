// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Kernels of the device without hardware: those of the host, on the device's streams.
#pragma once

#include <memory>

#include "engine/exec/kernels.h"

namespace gradtune::test {

std::unique_ptr<exec::Kernels> fake_kernels();

}  // namespace gradtune::test
