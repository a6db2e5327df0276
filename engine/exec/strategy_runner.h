// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What runs strategies on one rank, as the protocol of a step sees it (tuner/step_protocol.h): an executor, or its
// simulation.
#pragma once

#include <cstdint>

#include "engine/core/measurement.h"
#include "engine/core/result.h"
#include "engine/core/strategy.h"

namespace gradtune::exec {

class StrategyRunner {
 public:
  virtual ~StrategyRunner() = default;

  // Between steps. An error leaves all as it was.
  virtual core::Status prepare(int32_t slot, const core::Strategy& strategy) = 0;
  virtual void drop(int32_t slot) = 0;
  virtual void run(int32_t slot) = 0;     // on trial
  virtual void commit(int32_t slot) = 0;  // for good
  virtual const core::Strategy& strategy() const = 0;

  // Told whether all ranks were finite, once backward is done; whether the step counts.
  virtual core::Result<bool> conclude(bool finite) = 0;
  // What that bucket's compression lost in the step, on this rank; after conclude.
  virtual core::BucketLoss loss(int32_t bucket) const = 0;
};

}  // namespace gradtune::exec
