// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The settings of an executor.
#pragma once

#include <cstdint>
#include <functional>

#include "engine/core/bounded_wait.h"
#include "engine/core/result.h"
#include "engine/exec/device.h"

namespace gradtune::exec {

struct ExecutorOptions {
  int host_threads = 0;          // 0: placement `host` is refused; with a device, only the host thread itself works
  int64_t timeout_ms = 300'000;  // of every collective
  int64_t memory_budget_bytes = INT64_MAX;  // for residuals and pool, in each space
  uint64_t seed = 0;                        // of random compressors
  bool sums = false;                        // results are sums over ranks, not averages
  Device* device = nullptr;                 // of gradients outside of the host's memory; outlives the executor
  // Called now and then while a step waits; returns an error if another rank has failed. A transport only tells the
  // ranks that wait for the dead rank itself.
  std::function<core::Status()> alarm = {};
  // The longest time that the threads may take to end; after it the process ends (engine/core/bounded_wait.h).
  int64_t most_end_ms = core::kMostWaitMs;
};

}  // namespace gradtune::exec
