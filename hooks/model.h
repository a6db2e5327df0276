// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The trained model, as a session sees it: named parameters and buffers, and a check that they are unchanged. The
// owner of the tensors implements it: module_model.h for torch::nn::Module, trained_lists.h for lists that another
// language gives. A Stepper (stepper.h) updates the parameters.
//
// The session that owns it calls it on the training thread: the lists at set-up, drop_gradients() for a user's
// zero_grad(), buffer_layout() when a backward pass begins, and everything else once around each update. If a call
// throws, or check_unchanged() returns an error, training ends on all ranks with that message.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/core/result.h"
#include "hooks/named_tensors.h"

namespace gradtune {

class Model {
 public:
  virtual ~Model() = default;

  // Trainable and frozen ones, in an order that is the same on all ranks, each once. The list is made once and does
  // not change. All can be sent to other ranks: they are dense, and no two elements share memory.
  virtual const std::vector<NamedTensor>& parameters() const = 0;

  // Parameters that each rank keeps for itself: they are neither sent nor averaged. The list is made once.
  virtual const std::vector<NamedTensor>& own_parameters() const = 0;

  // The buffers that are equal to rank 0's after every backward pass; none if each rank has its own. They are the
  // current tensors, until check_unchanged() is called the next time. They may change their shape or dtype, and may
  // have other values after every forward pass.
  virtual const std::vector<NamedTensor>& buffers() const = 0;

  // An error that names a parameter or buffer that was added, removed, replaced or unfrozen since then, and would
  // differ between ranks. Called before every update; it allocates nothing if nothing changed. gradients.h checks
  // that gradients still have their hooks.
  virtual core::Status check_unchanged() = 0;

  // Drops the gradients of all parameters that were trainable when this object was made, and of all that belong to
  // one rank.
  virtual void drop_gradients() const = 0;

  // Hash of the current shapes and dtypes of the buffers; ranks with equal ones get equal hashes. Called in every
  // step; it allocates nothing if nothing changed.
  virtual uint64_t buffer_layout() = 0;
};

}  // namespace gradtune
