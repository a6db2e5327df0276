// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// One or several torch::optim::Optimizer of one model, stepped in the order in which they were given.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "hooks/stepper.h"

namespace gradtune {

class OptimStepper final : public Stepper {
 public:
  // All must outlive this object. Throws for an empty list, for an optimizer that is listed twice, and for one that
  // needs more than the gradients of one backward pass (LBFGS).
  explicit OptimStepper(std::vector<torch::optim::Optimizer*> optimizers);

  const void* identity() const override { return optimizers_.front(); }
  std::vector<Group> groups() const override;
  core::Status check_unchanged() override;
  void step() override;
  core::Status can_be_split(bool has_closure) const override;
  std::unique_ptr<const GroupOptions> options() const override;
  // While it runs, groups hold only these parameters.
  void step_part(std::span<const torch::Tensor> parameters, const GroupOptions* options) override;
  // One optimizer: its own state. Several: an archive for each, named by its number.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct Place {
    size_t optimizer, group;
  };
  class Part;

  std::vector<torch::optim::Optimizer*> optimizers_;
  std::vector<const void*> parameters_;            // of all groups, with null after each group
  std::unordered_map<const void*, Place> places_;  // of parameters
};

// Ok if an optimizer's step may be split into parts; the error says why not. Also accepts optimizers that cannot be
// wrapped.
core::Status can_be_split(const torch::optim::Optimizer& optimizer);

}  // namespace gradtune
