// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The update of the trained parameters, as a session sees it: the parameters and their groups; a step of all of
// them, or of a part. The owner of the user's optimizers implements it: optim_stepper.h for torch::optim::Optimizer,
// trained_lists.h for those of another language.
//
// The session that owns it calls it on the training thread: the properties at set-up, check_unchanged() before every
// update, and step() if the session runs the update. If the user's program calls its own optimizer, it tells the
// session before and after (Session::begin_update, end_update), and step() is never called. Exceptions go to the
// user; an error of check_unchanged() ends training on all ranks.
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
  // The gradients that a step takes without throwing. `sparse`: sparse ones only, as SparseAdam. `as_before`: sparse
  // ones only, for a parameter that had a sparse one before, as SGD with momentum, whose buffer is then sparse too.
  enum class Takes : uint8_t { any, as_before, sparse };

  // Parameters that are stepped with the same options.
  struct Group {
    std::string name;  // for people, the same on all ranks: "0, group 1" is the second group of the first optimizer
    std::vector<torch::Tensor> parameters;
    std::string momentum;  // for people, such as "momentum 0.9", "beta1 0.9"; empty: none, or unknown
    core::OptimizerFamily family = core::OptimizerFamily::adaptive;
    // Other options that must be equal on all ranks, by name: {"lr", "0.1"}. Empty for unknown optimizers.
    std::vector<std::pair<std::string, std::string>> options = {};
    Takes takes = Takes::any;
  };

  // The options of all groups (learning rate, weight decay, ...) at one moment, as a value: later changes by
  // schedulers do not affect it. Only the stepper that made it can read it.
  class GroupOptions {
   public:
    virtual ~GroupOptions() = default;
  };

  virtual ~Stepper() = default;

  // Identifies the optimizer: if the same pointer is wrapped again, the earlier wrap ends.
  virtual const void* identity() const = 0;

  virtual std::vector<Group> groups() const = 0;

  // An error if groups or parameters were added or removed since this object was made, because parameters outside
  // the model are not averaged. It allocates nothing if nothing changed.
  virtual core::Status check_unchanged() = 0;

  // Updates all parameters that have a gradient.
  virtual void step() = 0;

  // Ok if updates in parts, with each parameter in one of them, give the same bits as step(); the error says why
  // not. `has_closure`: the update gets a closure. If it is not ok, the two functions below are never called.
  virtual core::Status can_be_split(bool has_closure) const = 0;
  // The current options.
  virtual std::unique_ptr<const GroupOptions> options() const = 0;
  // Updates only these parameters, none of which is listed twice; parameters in no group are ignored. `options`:
  // made by options() of this stepper before; null: the current options. Afterwards options, groups and gradients
  // are as before, even if it throws. It is called for the parameters that step() left out, between that step and
  // the next one.
  virtual void step_part(std::span<const torch::Tensor> parameters, const GroupOptions* options) = 0;

  // State of the optimizers, between updates; called only when the user asks the session for it.
  virtual void save(torch::serialize::OutputArchive& archive) const = 0;
  virtual void load(torch::serialize::InputArchive& archive) = 0;
};

// Throws for a parameter that is stepped twice. Throws also for one that requires a gradient and is not in the
// model, because it would differ between ranks.
void check_parameters(const Stepper& stepper, const Model& model);

// The common family of all groups; `adaptive` if they differ, because it tolerates less.
core::OptimizerFamily family_of(const Stepper& stepper);

// Throws for a compressor that contains the optimizer's momentum (DGC) if a group has momentum too: it would count
// twice.
void check_momentum(const Stepper& stepper, std::span<const core::CompressorSpec> codecs);

}  // namespace gradtune
