// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests that every Communicator must pass, for any transport. All ranks run the same function of this suite on the
// same fresh group. Either each rank runs in a thread or process of its own, which plays one rank, or all run in one
// thread, as simulated ranks do. Expectations are GoogleTest's, so it is called from inside a test.
#pragma once

#include <functional>
#include <vector>

#include "engine/comm/communicator.h"

namespace gradtune::suites {

// The ranks that the calling thread plays. If nothing happens by itself, `progress` makes the next event happen; it
// is called until the awaited event has come.
struct Players {
  std::vector<comm::Communicator*> ranks;
  std::function<void()> progress = {};
};

// Runs every collective, element type and size, several under way at once, in place and not, also with payloads that
// are not full. It checks values, bounds, unchanged inputs, and one completion each. The group is in order
// afterwards.
void run_communicator_conformance(const Players& players);
inline void run_communicator_conformance(comm::Communicator& rank) { run_communicator_conformance(Players{{&rank}}); }

// A collective that the last rank never joins ends by the deadline on all others, and so does everything that is
// under way or started later. Needs two ranks. The group is unusable afterwards.
void run_communicator_deadline(const Players& players);

// Aborting ends everything that is under way or started later. The group is unusable afterwards.
void run_communicator_abort(const Players& players);

// For groups that check their calls: calls that differ between ranks are an error on all of them, and a call that is
// no collective throws. Needs two ranks. The group is unusable afterwards.
void run_communicator_misuse(const Players& players);

}  // namespace gradtune::suites
