// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Fashion-MNIST (Xiao, Rasul, Vollgraf 2017) from the four files of Debian's package dataset-fashion-mnist, and the
// order in which ranks go through it.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>

inline constexpr const char* kFashionMnistFolder = "/usr/share/datasets/fashion-mnist";  // of that package

struct Dataset {
  torch::Tensor images;  // uint8 [n, 28, 28]
  torch::Tensor labels;  // int64 [n]
};

// `part`: "train" (60,000) or "t10k" (10,000). Throws std::runtime_error that names the file and says how to get it.
Dataset load_fashion_mnist(const std::string& folder, const std::string& part);

struct Batch {
  torch::Tensor images;  // float [batch, 1, 28, 28], normalised
  torch::Tensor labels;  // int64 [batch]
};

// Endless batches of one rank. Each epoch is a new permutation of the whole set, the same on all ranks; rank r takes
// every world_size-th image from the r-th on. An incomplete batch at the end of an epoch is left out.
class Batches {
 public:
  Batches(const Dataset& data, int64_t batch_size, int rank, int world_size, int64_t seed);
  Batch next();
  void skip(int64_t batches);

 private:
  void shuffle();
  void advance();
  const Dataset& data_;
  const int64_t batch_size_, rank_, world_size_, seed_;
  int64_t epoch_ = -1, at_ = 0;
  torch::Tensor indices_;
};

Batch make_batch(const Dataset& data, const torch::Tensor& indices);
