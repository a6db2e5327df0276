// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The interface through which the protocol of a step (tuner/step_protocol.h) runs strategies on one rank: an
// executor, or its simulation.
#pragma once

#include <cstdint>

#include "engine/core/measurement.h"
#include "engine/core/result.h"
#include "engine/core/strategy.h"

namespace gradtune::exec {

class StrategyRunner {
 public:
  virtual ~StrategyRunner() = default;

  // Called between steps. An error leaves everything unchanged.
  virtual core::Status prepare(int32_t slot, const core::Strategy& strategy) = 0;
  virtual void drop(int32_t slot) = 0;
  virtual void run(int32_t slot) = 0;     // on trial
  virtual void commit(int32_t slot) = 0;  // for good
  virtual const core::Strategy& strategy() const = 0;

  // Called once backward is done; `finite` is true if all ranks were finite. Returns true if the step counts.
  virtual core::Result<bool> conclude(bool finite) = 0;
  // The loss of that bucket's compression in the step, on this rank; valid after conclude.
  virtual core::BucketLoss loss(int32_t bucket) const = 0;
};

}  // namespace gradtune::exec
