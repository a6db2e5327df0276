// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A group whose ranks are threads of one process. Calls are matched by their order, as in Gloo; a call that differs
// from another rank's is an error on all. It starts threads of its own, which move the data, watch deadlines and
// report completions. For tests and for jobs without a network; it does not model the speed of a network (see
// pacing.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/core/bounded_wait.h"

namespace gradtune::comm {

struct ThreadGroupOptions {
  int threads = 1;  // with more than one, collectives complete out of order

  // A fault to inject: once it returned true for a rank, this call of that rank and all later ones never reach the
  // others, as if its process had stopped.
  std::function<bool(int rank, int64_t call)> falls_silent = {};

  // The longest time, beyond the deadlines of the calls under way, that a data move, a completion or a thread may
  // take to end. After it the process ends (engine/core/bounded_wait.h).
  int64_t most_wait_ms = core::kMostWaitMs;
};

// The group as its ranks see it. The first rank that fails (deadline, abort, destruction while another one waits for
// it) ends the group, and the others learn which rank it was. An all-reduce adds in the order of ranks, so results
// do not depend on timing.
std::vector<std::unique_ptr<Communicator>> make_thread_group(int size, ThreadGroupOptions options = {});

}  // namespace gradtune::comm
