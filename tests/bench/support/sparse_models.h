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
  // On that rank's share of the batch of that step.
  virtual torch::Tensor loss(int64_t step, int rank) = 0;
};

// By name, with tables whose gradients are sparse or not; null where there is none of that name.
//   lstm    A word-level language model. Words of the text that the command "bible" prints are hashed to rows. The
//           softmax is over the words of the batch and 512 sampled others, the same on all ranks, so that both tables
//           are updated by rows.
//   deepfm  A factorization machine and a small network over 26 fields of one table. Ids are Zipf-distributed.
// Throws where the text can not be had.
std::shared_ptr<SparseModel> make_sparse_model(const std::string& name, bool has_sparse_gradients);

}  // namespace gradtune::bench
