// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Handles the events of steps: tells the scheduler of each, and carries out its actions. Computation and collectives
// go to the threads that do them; work of a device is queued here. One thread at a time handles events, so all that
// belongs to the handler belongs to the thread that has the turn.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/exec/scheduler.h"
#include "engine/exec/shared.h"

namespace gradtune::exec {

class EventHandler final : private EndListener {
 public:
  explicit EventHandler(Shared& shared) : shared_(shared) {}

  // Handles all events, unless another thread has the turn; that one then does so. Returns false if the
  // communication thread is to end.
  bool handle_all();

 private:
  void handle(const Event& event);
  void act(const Action& action);
  void enqueue(int32_t bucket, int32_t op);
  void look_at(int32_t bucket, int32_t first_op, int32_t last_op);
  bool has_ended(const Event& done) const;

  // Called from a thread of the device.
  void ended(uint64_t token) override;

  Shared& shared_;
  Scheduler scheduler_;
  std::vector<Action> actions_;
  bool finite_ = true;  // this rank's numbers, over the operations done so far
};

}  // namespace gradtune::exec
