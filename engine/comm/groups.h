// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The groups that one rank belongs to, each with a communicator of its own: all ranks, and if there are levels, the
// ranks of its node and the ranks of its position in all nodes. Collectives along a dimension of the mesh are
// messages between ranks of the group of all (Collective::among). They need no connections, threads or set-up time
// of their own in jobs that may never use them. The control collective has another group over all ranks, so that it
// never waits behind gradients.
#pragma once

#include "engine/comm/communicator.h"
#include "engine/core/topology.h"

namespace gradtune::comm {

struct Groups {
  core::Seat seat;
  Communicator& flat;
  Communicator& control;
  Communicator* intra = nullptr;  // null if there are no levels
  Communicator* inter = nullptr;

  Communicator& at(core::Level level) const {
    if (level == core::Level::flat || core::is_dimension(level)) return flat;
    Communicator* group = level == core::Level::intra ? intra : inter;
    core::check(group != nullptr, "a program with levels runs where there are levels");
    return *group;
  }

  void abort() const noexcept {
    for (Communicator* group : {&flat, intra, inter, &control}) {
      if (group != nullptr) abort_anyway(*group);
    }
  }
};

}  // namespace gradtune::comm
