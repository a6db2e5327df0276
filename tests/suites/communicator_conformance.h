// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What every Communicator has to do, whatever carries the data. All ranks run the same function of this suite on the
// same fresh group: each in a thread or process of its own, which then plays one rank, or all in one thread, as
// simulated ranks do. Expectations are GoogleTest's, so it is called from inside a test.
#pragma once

#include <functional>
#include <vector>

#include "engine/comm/communicator.h"

namespace gradtune::suites {

// The ranks that the calling thread plays. Where nothing happens by itself, `progress` makes the next thing happen; it
// is called until what is waited for has come.
struct Players {
  std::vector<comm::Communicator*> ranks;
  std::function<void()> progress = {};
};

// Every collective, type of element and size, several under way at once, in place and not, of payloads that need not be
// full as well: values, bounds, inputs left alone, one completion each. The group is in order afterwards.
void run_communicator_conformance(const Players& players);
inline void run_communicator_conformance(comm::Communicator& rank) { run_communicator_conformance(Players{{&rank}}); }

// What the last rank never joins ends by the deadline on all others, with everything else that is under way or started
// later. Needs two ranks. The group is of no more use afterwards.
void run_communicator_deadline(const Players& players);

// Aborting ends what is under way and all that is started later. The group is of no more use afterwards.
void run_communicator_abort(const Players& players);

// For groups that check what they are asked: calls that differ between ranks are an error on all of them, and a call
// that is no collective throws. Needs two ranks. The group is of no more use afterwards.
void run_communicator_misuse(const Players& players);

}  // namespace gradtune::suites
