// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Models whose tables hold most of their parameters, and their data, for the benchmark "sparse".
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>

namespace gradtune::bench {

struct SparseModel : torch::nn::Module {
  // For that rank's share of the batch of that step.
  virtual torch::Tensor loss(int64_t step, int rank) = 0;
};

// Makes a model by name on that device, with sparse or dense gradients of its tables; null for an unknown name. Data
// are made on the CPU, so that all devices get the same.
// - lstm: a word-level language model. Words of the text that the command "bible" prints are hashed to rows. The
//   softmax is over the words of the batch and 512 sampled others, the same on all ranks, so that both tables are
//   updated by rows
// - deepfm: a factorization machine and a small network over 26 fields of one table. Ids are Zipf-distributed
// Throws if the text is not available.
std::shared_ptr<SparseModel> make_sparse_model(const std::string& name, bool has_sparse_gradients,
                                               torch::Device device = torch::kCPU);

}  // namespace gradtune::bench
