// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The result of plain data-parallel training, in one process and without communication. It runs every rank's passes
// on its own batches, one after the other, with the gradients and buffers that this rank would have. Averages are in
// float64.
#pragma once

#include <torch/torch.h>

#include <iosfwd>
#include <memory>
#include <vector>

#include "tests/hooks/fuzz/random_model.h"

namespace gradtune::test {

struct Average {
  torch::Tensor value;  // float64; undefined if no rank has a gradient
  torch::Tensor scale;  // mean of the magnitudes of its parts
};

class PlainTraining {
 public:
  // Starts from rank 0's values.
  explicit PlainTraining(const JobPlan& plan);

  RandomModelImpl& model() { return *model_; }
  const std::vector<torch::Tensor>& parameters() const { return parameters_; }

  // One pass of every rank; a rank's gradients add to what it has.
  void pass(int step, int index, const StepPlan& plan);
  // Every rank's gradients after a pass that communicates.
  std::vector<Average> averages() const;
  // All ranks have these from now on. The buffers are those of rank 0 after a pass that communicates and after
  // wrap().
  void take_gradients(const std::vector<torch::Tensor>& of);
  void share_buffers();
  void zero_grad(StepPlan::Zero how);
  void drop_gradients() { zero_grad(StepPlan::Zero::wrapped); }
  // Uses the gradients of rank 0.
  void step();
  // Saves the state for a later rollback.
  void save(std::ostream& stream);
  void load(std::istream& stream);

 private:
  struct Replica {
    std::vector<torch::Tensor> gradients, buffers;
  };
  void enter(Replica& replica);
  void leave(Replica& replica);

  const uint64_t seed_;
  RandomModel model_;
  std::vector<torch::Tensor> parameters_, buffers_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::vector<Replica> replicas_;
};

// In place: values of parameters and buffers, and the optimizer's state.
void save_values(std::ostream& stream, const torch::nn::Module& module, torch::optim::Optimizer& optimizer);
void load_values(std::istream& stream, const torch::nn::Module& module, torch::optim::Optimizer& optimizer);

void zero_grad(StepPlan::Zero how, const std::vector<torch::Tensor>& parameters, torch::optim::Optimizer& optimizer,
               torch::nn::Module& module);

}  // namespace gradtune::test
