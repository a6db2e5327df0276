// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Residual blocks of convolutions (He et al., CVPR 2016), from which models are made.
#pragma once

#include <torch/nn.h>

// Has no bias; outputs are as large as inputs, divided by the stride.
torch::nn::Conv2d convolution(int64_t inputs, int64_t outputs, int64_t size, int64_t stride);

// Convolutions with a skip connection: [n, inputs, h, w] -> [n, outputs, h / stride, w / stride]. If the size
// changes, that connection is a 1 x 1 convolution.
class ResidualImpl : public torch::nn::Module {
 public:
  ResidualImpl(torch::nn::Sequential convolutions, int64_t inputs, int64_t outputs, int64_t stride);

  torch::Tensor forward(const torch::Tensor& x);

 private:
  torch::nn::Sequential convolutions_, skip_;
};
TORCH_MODULE(Residual);
