// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Communicators of simulated ranks. A collective begins when all ranks have joined it and takes the time that the
// slowest link needs; the data is really moved. They differ from real ones in two ways. Nothing happens by itself,
// so a caller that waits for a completion has to run the world. The sinks of crashed ranks are never told.
#pragma once

#include <memory>
#include <vector>

#include "engine/comm/communicator.h"
#include "tests/sim/world.h"

namespace gradtune::sim {

// One group over all ranks of the world, as its ranks see it; all groups share the links. The first rank that fails
// (deadline, abort) ends the group, and the others hear of it one message later. A communicator whose collectives are
// under way runs the world when it is destroyed, until they have ended. The world must outlive the group.
std::vector<std::unique_ptr<comm::Communicator>> make_group(World& world);

}  // namespace gradtune::sim
