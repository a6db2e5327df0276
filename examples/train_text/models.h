// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The models of the example, by name. All are plain LibTorch and do not depend on gradtune.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <string>

// int64 [batch, length] -> scores [batch, length, kSymbols]. "transformer": 0.43 M parameters; "lstm": 0.37 M. Throws
// std::runtime_error for another name.
torch::nn::Sequential make_model(const std::string& name);
