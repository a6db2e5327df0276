// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// ResNet-50 (He et al., CVPR 2016), with the stride in the 3 x 3 convolution as torchvision has it.
#pragma once

#include <torch/nn.h>

// 1 x 1, 3 x 3 and 1 x 1 convolutions beside a connection that skips them.
class BottleneckImpl : public torch::nn::Module {
 public:
  BottleneckImpl(int64_t inputs, int64_t width, int64_t stride);

  // [n, inputs, h, w] -> [n, 4 * width, h / stride, w / stride].
  torch::Tensor forward(const torch::Tensor& x);

 private:
  torch::nn::Sequential convolutions_, skip_;
};
TORCH_MODULE(Bottleneck);

// [n, 3, 224, 224] -> scores [n, 1000].
torch::nn::Sequential resnet50();
