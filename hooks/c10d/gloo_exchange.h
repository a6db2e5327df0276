// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Exchanges between all ranks over Gloo's messages, in both directions at once. A sender of Gloo waits until the
// receiver has announced the message, and what is announced goes the way of the receiver's own data, behind it. Gloo's
// all-to-all and all-gather send first: whichever rank comes second has its data under way before its announcement, the
// other one can only send after that, and the two directions of a link are used one after the other. Here all that a
// rank will receive is announced before it sends anything.
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

// What c10d threw, as an error of one line (behind the first one are stacks); of code `timeout` where it says so.
core::Error c10d_error(const std::exception_ptr& exception) noexcept;

class GlooExchange {
 public:
  // Messages between two ranks arrive in the order in which they were sent. One may be shorter than the room for it.
  struct Receive {
    int from = 0;
    at::Tensor into;
  };
  struct Send {
    int to = 0;
    at::Tensor what;
    int after = -1;  // the position of a receive that it waits for, to pass it on
  };
  struct Messages {
    std::vector<Receive> receives = {};
    std::vector<Send> sends = {};                           // in this order
    std::function<int64_t(const at::Tensor&)> length = {};  // elements that are sent of that; null: all
  };

  // With as many threads as the backend has, which wait for messages.
  explicit GlooExchange(c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo);
  ~GlooExchange();  // blocks until nothing is under way

  // `meanwhile` runs once what waits for nothing is under way, `done`, which must not throw, at the end, both on a
  // thread of the exchange. Throws where it can not even begin, and calls neither then. In the same order on all ranks,
  // from one thread at a time.
  void start(Messages messages, std::chrono::milliseconds timeout, std::function<void()> meanwhile,
             std::function<void(core::Status)> done);

  // What is under way ends with an error, and so does what is started later. From any thread.
  void abort();

 private:
  using Works = std::list<std::vector<c10::intrusive_ptr<c10d::Work>>>;

  using Deadline = std::chrono::steady_clock::time_point;

  void announce(const Messages& messages, int tag, Works::iterator works);
  core::Status transfer(const Messages& messages, int tag, Works::iterator works, Deadline deadline,
                        const std::function<void()>& meanwhile);
  static core::Status wait(c10d::Work& work, Deadline deadline);

  const c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  int next_tag_ = 0;
  std::mutex mutex_;
  Works works_;  // of each exchange that is under way
  bool aborted_ = false;
  c10::ThreadPool threads_;
};

}  // namespace gradtune
