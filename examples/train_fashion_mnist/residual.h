// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A small residual network for images of one channel (He et al., CVPR 2016), with batch normalisation, whose running
// means are buffers.
#pragma once

#include <torch/nn/modules/container/sequential.h>

// [n, 1, 28, 28] -> scores [n, 10]; three blocks of 32, 64 and 128 channels, 0.31 M parameters.
torch::nn::Sequential residual_network();
