// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Asks the store, while this rank waits for others, whether one of them has failed or makes another call than this one.
// It asks on a thread of its own and only when told to, so that whoever waits goes on with what comes in meanwhile: an
// answer takes as long as what is queued on the link.
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

  // This rank makes that call now. Allocates nothing.
  void enter(Call call, int64_t step);

  // What is known so far: an error (peer) when another rank told that it failed or makes another call than this one,
  // one (lost) when it told that it lost somebody. Has the store asked again, unless that is under way. Never blocks.
  core::Status ask();

 private:
  struct Shared;
  static void run(Shared& shared);
  static core::Status look(Shared& shared, const std::string& own_calls);

  const std::shared_ptr<Shared> shared_;  // the thread's too, which may outlive this
  std::thread thread_;
};

}  // namespace gradtune
