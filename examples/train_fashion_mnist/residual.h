// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A small residual network for images of one channel (He et al., CVPR 2016), with batch normalisation, whose running
// means are buffers.
#pragma once

#include <torch/nn.h>

// Two 3 x 3 convolutions beside a connection that skips them; where the size changes, that one is a 1 x 1 convolution.
class ResidualBlockImpl : public torch::nn::Module {
 public:
  ResidualBlockImpl(int64_t inputs, int64_t outputs, int64_t stride);

  // [n, inputs, h, w] -> [n, outputs, h / stride, w / stride].
  torch::Tensor forward(const torch::Tensor& x);

 private:
  torch::nn::Sequential convolutions_, skip_;
};
TORCH_MODULE(ResidualBlock);

// [n, 1, 28, 28] -> scores [n, 10]; three blocks of 32, 64 and 128 channels, 0.31 M parameters.
torch::nn::Sequential residual_network();
