// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A group whose ranks are threads of one process. Calls are matched by their order, as in Gloo; a call that differs
// from another rank's is an error on all. It starts threads of its own, which move the data, watch deadlines and tell
// completions. For tests and for jobs without a network; what it does not model is the speed of one (see pacing.h).
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

  // How long what is being moved or told, or a thread, may take to end beyond the deadlines of what is under way; then
  // the process ends (engine/core/bounded_wait.h).
  int64_t most_wait_ms = core::kMostWaitMs;
};

// The group as its ranks see it. The first rank that fails (deadline, abort, destruction while another one waits for
// it) ends the group, and the others are told who it was. An all-reduce adds in the order of ranks: results do not
// depend on timing.
std::vector<std::unique_ptr<Communicator>> make_thread_group(int size, ThreadGroupOptions options = {});

}  // namespace gradtune::comm
