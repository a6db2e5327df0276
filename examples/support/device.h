// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The device of flag --device.
#pragma once

#include <torch/types.h>

#include <string>

// Accepts "cpu", "cuda" or "cuda:1". LibTorch's CUDA library is loaded only for the latter two, so that a program
// runs without it. Throws std::runtime_error that says what is missing.
torch::Device open_device(const std::string& name);
