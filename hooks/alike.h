// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The values of a backward pass that must be equal on all ranks. Their hash goes with the control word. If it differs,
// all ranks detect that in the same step and compare details.
#pragma once

#include <cstdint>

#include "engine/core/hash.h"
#include "engine/core/result.h"
#include "hooks/c10d/peers.h"
#include "hooks/model.h"
#include "tuner/step_protocol.h"

namespace gradtune {

struct Alike {
  uint64_t buffers = 0;  // hash of their layout
  uint64_t updated = 0;  // the optimizers that stepped since the previous pass, one bit each

  uint64_t hash() const {
    core::Hasher hasher;
    hasher.add(buffers);
    hasher.add(updated);
    return hasher.value();
  }
};

// Collective, after a mismatch: the error with the ranks that differ and the value in which they do. A rank that knows
// the cause ends, which may stop the comparison on others; the mismatch is reported in any case.
core::Error explain_mismatch(const core::Error& mismatch, const Alike& mine, const tuner::StepProtocol& protocol,
                             Model& model, Peers& peers);

}  // namespace gradtune
