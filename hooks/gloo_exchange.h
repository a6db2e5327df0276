// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Exchanges between all ranks over Gloo's messages, in both directions at once. A sender of Gloo waits until the receiver
// has announced the message, and what is announced goes the way of the receiver's own data, behind it. Gloo's all-to-all
// and all-gather send first: whichever rank comes second has its data under way before its announcement, the other one
// can only send after that, and the two directions of a link are used one after the other. Here all that a rank will
// receive is announced before it sends anything.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/thread_pool.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <chrono>
#include <functional>
#include <list>
#include <mutex>
#include <vector>

#include "engine/core/result.h"

namespace gradtune {

// What c10d threw, as an error; of code `timeout` where it says so.
core::Error c10d_error(const std::exception_ptr& exception);

class GlooExchange {
 public:
  // Of one peer; both as many bytes as the peer has them.
  struct Part {
    int peer = 0;
    at::Tensor sent, received;
  };

  // With as many threads as the backend has, which wait for messages.
  explicit GlooExchange(c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo);
  ~GlooExchange();  // blocks until nothing is under way

  // `meanwhile` runs once sending began, `done` at the end, both on a thread of the exchange; where not even the
  // announcements can be made `done` is called at once. In the same order on all ranks, from one thread at a time.
  void start(std::vector<Part> parts, std::chrono::milliseconds timeout, std::function<void()> meanwhile,
             std::function<void(core::Status)> done);

  // What is under way ends with an error, and so does what is started later. From any thread.
  void abort();

 private:
  using Works = std::list<std::vector<c10::intrusive_ptr<c10d::Work>>>;

  void announce(const std::vector<Part>& parts, int tag, Works::iterator works);
  void send(const std::vector<Part>& parts, int tag, Works::iterator works);
  static core::Status wait(const std::vector<c10::intrusive_ptr<c10d::Work>>& works,
                           std::chrono::steady_clock::time_point deadline);

  const c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  int next_tag_ = 0;
  std::mutex mutex_;
  Works works_;  // of each exchange that is under way
  bool aborted_ = false;
  c10::ThreadPool threads_;
};

}  // namespace gradtune
