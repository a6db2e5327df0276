// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The data that is carried from step to step, as it lies in memory: a checkpoint reads it, or overwrites it. Valid
// until the next step or change of strategies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/exec/residual_owners.h"

namespace gradtune::exec {

struct Carried {
  uint32_t* step = nullptr;                      // random numbers depend on it
  std::vector<std::span<float>> residuals = {};  // by arena, in its order; all are empty while nothing needs them
  std::vector<std::span<float>> parked = {};     // the same for parked ones (memory.h)
  ResidualOwners* holders = nullptr;             // of the residuals
  std::span<std::byte> state = {};               // of the codecs of the strategy in force
};

}  // namespace gradtune::exec
