// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The memory that the programs of one rank take turns to use: the pool of each space, and the state of codecs in the
// spaces where they work. It grows with the largest program, and never shrinks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "engine/core/result.h"
#include "engine/exec/compute.h"
#include "engine/exec/memory.h"
#include "engine/exec/program.h"
#include "engine/exec/spaces.h"

namespace gradtune::exec {

class ProgramMemory {
 public:
  explicit ProgramMemory(const Spaces& spaces) : spaces_(spaces), allocators_(spaces.allocators()) {}

  int64_t bytes(core::Space space) const { return pools_[space].bytes() + states_[space].bytes(); }
  // The bytes in that space once there is room for this program too.
  int64_t bytes_with(const Program& program, core::Space space) const;

  // The memory that a program needs beyond what there is.
  struct Growth {
    core::PerSpace<AlignedBytes> pools = {};
    core::PerSpace<std::optional<States>> states = {};
  };
  // Allocates it in one space. Throws std::bad_alloc. Nothing changes before take().
  void grow(const Program& program, core::Space space, Growth& growth) const;
  void take(Growth growth) noexcept;

  // The functions below are about the program in force.

  // Called when a program is put in force: it finds states of zeros.
  void clear_states();
  // The current state, for a checkpoint to read or overwrite: that of the host, and behind it a copy of that on a
  // device.
  std::span<std::byte> state_at_home(const Program& program);
  // Copies the state back to the device, if state_at_home made a copy. Waits for it.
  core::Status bring(const Program& program);
  // Called if a step counts: all that was written becomes current.
  void swap_states();

  std::byte* pool(core::Space space) const { return pools_[space].data(); }
  // Fills in the pools and states.
  void describe(BucketMemory& memory) const;

 private:
  Spaces spaces_;
  Allocators allocators_;
  core::PerSpace<AlignedBytes> pools_;
  core::PerSpace<States> states_;
  AlignedBytes state_at_home_;  // of all spaces; if not empty, it holds the current state
};

}  // namespace gradtune::exec
