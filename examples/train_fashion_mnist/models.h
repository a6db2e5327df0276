// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The models of the example. All are plain LibTorch and do not depend on gradtune.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <string>

// - "vgg": two convolutions and three linear layers, 8.55 M parameters of which 75 % are in one layer; a large gain
//   is possible.
// - "resnet": residual.h, 0.31 M parameters, with batch normalisation.
// - "mlp-small": 50 k parameters; no gain is possible.
// - "large-first", "large-last": 4.5 and 3.2 M parameters, most of them in the layer that forward reads first, or
//   late.
// - "transformer": two layers of 0.8 M parameters each.
// Throws std::runtime_error for another name.
torch::nn::Sequential make_model(const std::string& name);
