// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// One or several torch::optim::Optimizer over one model, stepped in the order in which they were given.
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
  // All must outlive it. Throws for none, for one that is there twice, and for one that needs more than the gradients
  // of one backward pass (LBFGS).
  explicit OptimStepper(std::vector<torch::optim::Optimizer*> optimizers);

  const void* identity() const override { return optimizers_.front(); }
  std::vector<Group> groups() const override;
  core::Status check_unchanged() override;
  void step() override;
  core::Status can_be_split(bool has_closure) const override;
  std::unique_ptr<const GroupOptions> options() const override;
  // While it runs, groups hold these parameters alone.
  void step_part(std::span<const torch::Tensor> parameters, const GroupOptions* options) override;
  // Of one: its own state; of several: each in an archive of its own, by number.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct Place {
    size_t optimizer, group;
  };
  class Part;

  std::vector<torch::optim::Optimizer*> optimizers_;
  std::vector<const void*> parameters_;            // of all groups, with null behind each group
  std::unordered_map<const void*, Place> places_;  // of parameters
};

// Whether an optimizer's step may be done in parts; the error says why not. Also for those that can not be wrapped.
core::Status can_be_split(const torch::optim::Optimizer& optimizer);

}  // namespace gradtune
