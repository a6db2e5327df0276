// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The model of a plan, its batches and its optimizer. The same numbers always give the same ones, so every rank can
// make those of the others.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/hooks/fuzz/job_plan.h"

namespace gradtune::test {

struct Batch {
  torch::Tensor inputs, ids, targets;
};

Batch make_batch(uint64_t seed, int rank, int step, int pass);

// A pass of a rank: its batch, and the optional layers that it uses.
struct Pass {
  int rank = 0, step = 0, index = 0;
};

class RandomModelImpl : public torch::nn::Module {
 public:
  // `values`: the seed of the initial values of parameters and buffers.
  RandomModelImpl(const ModelPlan& plan, uint64_t seed, uint64_t values);

  // `between` is called with the middle block's output, and returns the input of the next one.
  using Between = std::function<torch::Tensor(torch::Tensor)>;
  torch::Tensor loss(const Pass& pass, const Between& between = nullptr);

  // A buffer with its own size, for mistakes; and one that may be replaced by a larger one.
  void add_buffer(const std::string& name, int64_t numel);

 private:
  struct Block {
    BlockPlan plan;
    torch::Tensor weight, bias;
    torch::nn::BatchNorm1d norm{nullptr};
  };
  void add_block(const BlockPlan& plan, const std::string& name, int64_t width);
  void add_buffers(float value);
  bool uses(const BlockPlan& block, size_t index, const Pass& pass) const;
  torch::Tensor apply(Block& block, const torch::Tensor& x, const Batch& batch);
  void change_buffers(const torch::Tensor& x);

  torch::Tensor with_penalty(const torch::Tensor& loss) const;

  const uint64_t seed_;
  const bool has_penalty_;
  std::vector<Block> blocks_;
  torch::Tensor head_;
  torch::Tensor count_, flag_, mean_, half_, none_, across_;
};
TORCH_MODULE(RandomModel);

// The seed of a rank's initial values: only those of rank 0 count.
inline uint64_t initial_values(const JobPlan& plan, int rank) { return plan.seed * 10 + static_cast<uint64_t>(rank); }
RandomModel make_model(const JobPlan& plan, uint64_t values);

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const OptimizerPlan& plan,
                                                        const std::vector<torch::Tensor>& parameters);

// The parameters that require a gradient, each once.
std::vector<torch::Tensor> trained(const torch::nn::Module& module);

}  // namespace gradtune::test
