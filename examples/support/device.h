// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The device of flag --device.
#pragma once

#include <torch/types.h>

#include <string>

// "cpu", "cuda" or "cuda:1". LibTorch's CUDA library is loaded for the latter alone, so that a program runs where there
// is none. Throws std::runtime_error that says what is missing.
torch::Device open_device(const std::string& name);
