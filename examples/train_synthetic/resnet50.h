// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// ResNet-50 (He et al., CVPR 2016), with the stride in the 3 x 3 convolution as torchvision has it.
#pragma once

#include <torch/nn/modules/container/sequential.h>

// [n, 3, 224, 224] -> scores [n, 1000].
torch::nn::Sequential resnet50();
