// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The objects that all threads of an executor share, and the work that several of them do alike. Everything else
// belongs to one thread (training_thread.h, communication_thread.h, host_thread.h), or to the one that has the turn
// to handle events (event_handler.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "engine/comm/groups.h"
#include "engine/compress/queue.h"
#include "engine/core/clock.h"
#include "engine/exec/executor_options.h"
#include "engine/exec/failure.h"
#include "engine/exec/mail.h"
#include "engine/exec/trace.h"
#include "engine/exec/workspace.h"

namespace gradtune::exec {

// The progress of the step, which the thread that handles events tells the thread that runs backward.
struct Progress {
  enum class Done : uint8_t { nothing, backward, all };
  std::atomic<Done> done = Done::all;
  std::vector<std::atomic<bool>> late_done;  // per bucket: due at the next forward pass, and done
  std::atomic<int64_t> events = 0;           // the number of those handled
  int64_t step = 0;                          // the current one, counted from 1; it changes between steps

  void begin_program(const Program& program);
  void begin_step();
};

struct Shared {
  const comm::Groups groups;
  const core::Clock& clock;
  const ExecutorOptions options;
  Workspace workspace;
  Mail mail{};
  Failure failure{mail.training.bell()};
  Progress progress{};
  Trace trace{};

  bool is_away(int32_t bucket) const { return workspace.bucket(bucket).space != core::Space::host; }
  // Called on each new thread.
  void enter_device();
  // Runs the operation after the bucket's earlier work, on whichever queue that was.
  void compute(int32_t bucket, int32_t op, compress::Queue& queue);
  // The error of a step that makes no progress.
  core::Error hang() const;
};

}  // namespace gradtune::exec
