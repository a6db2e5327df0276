// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The communication thread of an executor: issues all collectives, in the order of the scheduler (I3). It also
// handles events while the thread that runs backward does not.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "engine/comm/communicator.h"
#include "engine/core/bounded_wait.h"
#include "engine/exec/event_handler.h"

namespace gradtune::exec {

// Called on the communication thread once per step, when it is known if this rank's numbers are finite; returns this
// rank's control word. When finish_backward returns, the word holds its maximum over ranks.
using ControlWord = std::function<std::span<double>(bool finite)>;

class CommunicationThread final : private comm::CompletionSink {
 public:
  CommunicationThread(Shared& shared, EventHandler& handler, ControlWord control_word);
  ~CommunicationThread() override { stop(); }

  // Collectives under way still complete into this object after stop().
  void start();
  void stop();

 private:
  void run();
  void issue(const Start& what);

  // Called from any thread.
  void complete(uint64_t token, core::Status status, core::Fence done) override;
  void completed(int32_t bucket, int32_t op, const core::Fence& done);

  Shared& shared_;
  EventHandler& handler_;
  const ControlWord control_word_;
  core::BoundedThread thread_;
};

}  // namespace gradtune::exec
