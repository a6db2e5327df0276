// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The groups that one rank belongs to, each with a communicator of its own: all ranks, and where there are levels, its
// node's ranks and the ranks of its position in all nodes. What goes along a dimension of the mesh is messages between
// ranks of the group of all, which are connected (Collective::among): so that takes no connections and threads of its
// own, and no time of set-up, in jobs that may never need it. The control collective has a group over all ranks again,
// so that it never waits behind gradients.
#pragma once

#include "engine/comm/communicator.h"
#include "engine/core/topology.h"

namespace gradtune::comm {

struct Groups {
  core::Seat seat;
  Communicator& flat;
  Communicator& control;
  Communicator* intra = nullptr;  // null where there are no levels
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
