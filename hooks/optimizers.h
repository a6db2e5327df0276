// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The optimizers that a user wrapped, one or several over one model, as a session uses them: which parameters they
// hold, whether that is still so, one step of all. What they can not be combined with is refused, by name and with what
// is allowed. The update itself is theirs.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/core/compressor.h"
#include "engine/core/result.h"
#include "hooks/model.h"

namespace gradtune {

class Optimizers {
 public:
  // All must outlive it. Throws for none, one that is there twice, a parameter that two groups hold or that requires a
  // gradient and is not the model's (it would differ between ranks), and for an optimizer that needs more than the
  // gradients of one backward pass (LBFGS).
  Optimizers(std::vector<torch::optim::Optimizer*> optimizers, const Model& model);

  // Where each parameter is, by its implementation: the numbers of optimizer and group.
  using Places = std::unordered_map<const void*, std::pair<size_t, size_t>>;
  Places places() const;

  // An error when groups or parameters were added or removed since then: what is not the model's is not averaged.
  core::Status check_unchanged() const;

  // A compressor that has the optimizer's momentum inside (DGC) is refused where an optimizer has momentum as well: it
  // would count twice. Throws.
  void check_momentum(std::span<const core::CompressorSpec> codecs) const;

  void step();
  torch::optim::Optimizer& at(size_t index) const;

  // Of one: its own state; of several: each in an archive of its own, by number.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  std::vector<torch::optim::Optimizer*> optimizers_;
  std::vector<const void*> parameters_;  // of all groups, with null behind each group
};

}  // namespace gradtune
