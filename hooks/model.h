// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What is trained, as a session sees it: named parameters and buffers, and whether they are still those of before.
// Whoever holds them implements it: module_model.h for torch::nn::Module, trained_lists.h for lists that another
// language gives. Who updates the parameters is a Stepper (stepper.h).
//
// The session that owns it calls it, on the thread that trains: the lists at set-up, drop_gradients() when a user's
// zero_grad() asks for it, buffer_layout() when a backward pass begins, and all but that once around each update. Where
// it throws, or check_unchanged() returns an error, training ends on all ranks with that message.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/core/result.h"
#include "hooks/named_tensors.h"

namespace gradtune {

class Model {
 public:
  virtual ~Model() = default;

  // Trainable or not, in an order that is the same on all ranks, each once. Those that were there when it was made: the
  // list does not change. All can be sent to other ranks: dense, no element in the memory of another.
  virtual const std::vector<NamedTensor>& parameters() const = 0;

  // Parameters that stay each rank's own: they are neither sent nor averaged. Those that were there when it was made.
  virtual const std::vector<NamedTensor>& own_parameters() const = 0;

  // What is rank 0's after every backward pass; none where each rank has its own. The tensors of now, until
  // check_unchanged() is called the next time: they may change their shape or dtype, and have other values after every
  // forward pass.
  virtual const std::vector<NamedTensor>& buffers() const = 0;

  // An error that names what was added, removed, replaced or unfrozen since then, and would differ between ranks.
  // Before every update: where nothing changed it allocates nothing. That gradients still have their hooks is not asked
  // here (gradients.h).
  virtual core::Status check_unchanged() = 0;

  // Drops the gradients of all parameters that were trainable when it was made, and of all that are a rank's own.
  virtual void drop_gradients() const = 0;

  // Hash of the buffers' shapes and dtypes as they are now, the same on ranks where these are. In every step: where
  // nothing changed it allocates nothing.
  virtual uint64_t buffer_layout() = 0;
};

}  // namespace gradtune
