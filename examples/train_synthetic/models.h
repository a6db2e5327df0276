// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Models of common sizes with random data, to measure step times, not learning.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <functional>
#include <string>

struct SyntheticJob {
  torch::nn::Sequential model;
  // The loss of one batch of `batch` samples, drawn on the device.
  std::function<torch::Tensor(torch::nn::Sequential& model, int64_t batch)> loss;
};

// "gpt2": 12 layers of width 768, 50,257 symbols, pieces of `length` symbols; 163 M parameters (the output layer has
// its own weights). "resnet50": images of 224 x 224, 1,000 classes; 25.6 M parameters. "tiny": gpt2 with 2 layers of
// width 64 and 1,000 symbols, for quick trials. Throws std::runtime_error for another name.
SyntheticJob make_job(const std::string& name, int64_t length, torch::Device device);
