// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs such a job as a user's program would, with any trainer, and returns parameters and gradients at chosen
// moments. The reference is plain training, in one process and without communication. All others must agree with it
// bit by bit: averages are sums of shares, which are the same for two ranks in any order.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <vector>

#include "tests/hooks/overlap/overlap_plan.h"

namespace gradtune::test {

class OverlapTrainer {
 public:
  virtual ~OverlapTrainer() = default;
  // A forward and a backward pass. With `synced`, gradients are averages afterwards.
  virtual void pass(int step, int index, bool synced) = 0;
  virtual void zero_grad() = 0;
  virtual void step(const std::function<void()>& closure) = 0;
  virtual void synchronize() {}
  virtual void switch_strategy(int /*number*/) {}
  virtual void checkpoint() {}
};

// Each is a list of tensors at one moment.
using Moments = std::vector<std::vector<torch::Tensor>>;

// `rank`: the rank of forward passes that train nothing.
Moments run_overlap(const OverlapPlan& plan, int rank, OverlapModel& model, torch::optim::Optimizer& optimizer,
                    OverlapTrainer& trainer);

Moments run_plain(const OverlapPlan& plan, int ranks);

// The first difference, or nothing.
std::string difference(const Moments& found, const Moments& wanted);

}  // namespace gradtune::test
