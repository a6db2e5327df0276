// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Asks the store, while this rank waits for others, whether one of them has failed or makes another call than this
// one. It asks on its own thread, and only on request, so that the waiting thread can go on with incoming data: an
// answer waits behind the data that is queued on the link.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <memory>
#include <thread>

#include "engine/core/result.h"
#include "hooks/c10d/call_log.h"

namespace gradtune {

class Watch {
 public:
  Watch(c10::intrusive_ptr<c10d::Store> store, int rank, int size);
  ~Watch();  // does not wait for a store that does not answer
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Records that this rank makes that call now. Allocates nothing.
  void enter(Call call, int64_t step);

  // The last known state: an error (peer) if another rank reported a failure or makes another call than this one, or
  // an error (lost) if a rank reported that it lost a peer. Starts another request to the store unless one is in
  // flight. Never blocks.
  core::Status ask();

 private:
  struct Shared;
  static void run(Shared& shared);
  static core::Status look(Shared& shared, const std::string& own_calls);

  const std::shared_ptr<Shared> shared_;  // shared with the thread, which may outlive this object
  std::thread thread_;
};

}  // namespace gradtune
