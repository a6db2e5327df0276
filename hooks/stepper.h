// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Who updates what is trained, as a session sees it: which parameters, in which groups; a step of all, or of a part of
// them. Whoever knows the user's optimizers implements it: optim_stepper.h for torch::optim::Optimizer, trained_lists.h
// for those of another language.
//
// The session that owns it calls it, on the thread that trains: at set-up what it is, before every update
// check_unchanged(), and step() where the session runs the update. It need not own the update: where the user's program
// calls its own optimizer, it tells the session before and after (Session::begin_update, end_update), and step() is
// never called. What it throws goes to the user; check_unchanged()'s error ends training on all ranks.
#pragma once

#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>
#include <torch/types.h>

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/compressor.h"
#include "engine/core/result.h"
#include "hooks/model.h"

namespace gradtune {

class Stepper {
 public:
  // Which gradients a step takes without throwing. `sparse`: sparse ones alone, as SparseAdam. `as_before`: sparse ones
  // alone for a parameter that had a sparse one, as SGD with momentum, whose buffer is then sparse, too.
  enum class Takes : uint8_t { any, as_before, sparse };

  // Parameters that are stepped with the same options.
  struct Group {
    std::string name;  // for people, the same on all ranks: "0, group 1" is the second group of the first optimizer
    std::vector<torch::Tensor> parameters;
    std::string momentum;  // for people, such as "momentum 0.9", "beta1 0.9"; empty: none, or none is known
    core::OptimizerFamily family = core::OptimizerFamily::adaptive;
    // What must be alike on all ranks besides, by name: {"lr", "0.1"}. Of optimizers that are not known: none.
    std::vector<std::pair<std::string, std::string>> options = {};
    Takes takes = Takes::any;
  };

  // The options of all groups (learning rate, weight decay, ...) at one moment, as a value: schedulers that change them
  // later do not change it. What is inside only the stepper that made it knows.
  class GroupOptions {
   public:
    virtual ~GroupOptions() = default;
  };

  virtual ~Stepper() = default;

  // The same pointer: the same optimizer was wrapped again, which ends the wrap before.
  virtual const void* identity() const = 0;

  virtual std::vector<Group> groups() const = 0;

  // An error when groups or parameters were added or removed since it was made: what is not the model's is not
  // averaged. Where nothing changed it allocates nothing.
  virtual core::Status check_unchanged() = 0;

  // An update of all parameters that have a gradient.
  virtual void step() = 0;

  // Whether an update in parts, each parameter in one of them, comes to the same bits as step(); if not, an error that
  // says why. `has_closure`: of an update that is given a closure. Where it is not ok, neither of the two below is
  // called.
  virtual core::Status can_be_split(bool has_closure) const = 0;
  // The options as they are now.
  virtual std::unique_ptr<const GroupOptions> options() const = 0;
  // An update of these alone, none of which is there twice; those in no group are left out. With the options given,
  // which options() of this stepper made before; null: as they are now. Options, groups and gradients are afterwards
  // what they were, also when it throws. Called where a part is due: for what step() leaves out, between it and the
  // next one.
  virtual void step_part(std::span<const torch::Tensor> parameters, const GroupOptions* options) = 0;

  // State of the optimizers, between updates; only when the user asks the session for it.
  virtual void save(torch::serialize::OutputArchive& archive) const = 0;
  virtual void load(torch::serialize::InputArchive& archive) = 0;
};

// Throws for a parameter that is stepped twice, or that requires a gradient and is not the model's (it would differ
// between ranks).
void check_parameters(const Stepper& stepper, const Model& model);

// That of all groups; adaptive where they differ, as that bears less.
core::OptimizerFamily family_of(const Stepper& stepper);

// A compressor that has the optimizer's momentum inside (DGC) is refused where a group has momentum as well: it would
// count twice. Throws.
void check_momentum(const Stepper& stepper, std::span<const core::CompressorSpec> codecs);

}  // namespace gradtune
