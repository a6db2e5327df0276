// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The host thread of an executor: does the operations with placement `host`, one after the other, on all the workers
// of a oneTBB arena.
#pragma once

#include <memory>

#include "engine/core/bounded_wait.h"
#include "engine/exec/shared.h"

namespace gradtune::exec {

class HostThread {
 public:
  explicit HostThread(Shared& shared);
  ~HostThread() { stop(); }

  // False if the options ask for no threads of the host: then there is nobody to do its operations.
  bool exists() const { return queue_ != nullptr; }
  void start();
  void stop();

 private:
  void run();

  Shared& shared_;
  std::unique_ptr<compress::HostQueue> queue_;
  core::BoundedThread thread_;
};

}  // namespace gradtune::exec
