// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Exchanges between all ranks over Gloo's messages, in both directions at once. A Gloo sender waits until the
// receiver has announced the message, and the announcement is queued behind the data that the receiver itself is
// sending. Gloo's all-to-all and all-gather send first. So the rank that comes second has its data in flight before
// its announcement, and the other rank can send only after that: the two directions of a link are used one after the
// other. This class announces all receives before it sends anything, and those of short messages before the sender
// has them (eager_messages.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/thread_pool.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <chrono>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/core/result.h"
#include "hooks/c10d/eager_messages.h"
#include "hooks/c10d/gloo_tags.h"

namespace gradtune {

// Converts an exception of c10d to an error of one line (stack traces follow the first line). The code is `timeout`
// if the message says so.
core::Error c10d_error(const std::exception_ptr& exception) noexcept;

// Waits for a message of Gloo, once. An error says that it was aborted; c10d throws at the deadline and if the peer is
// gone.
core::Status await_message(c10d::Work& work, std::chrono::steady_clock::time_point deadline);

class GlooExchange {
 public:
  // Messages between two ranks arrive in the order in which they were sent. A message may be shorter than its
  // buffer.
  struct Receive {
    int from = 0;
    at::Tensor into;
  };
  struct Send {
    int to = 0;
    at::Tensor what;
    int after = -1;  // index of the receive that must end first, because this passes it on
  };
  struct Messages {
    std::vector<Receive> receives = {};
    std::vector<Send> sends = {};                           // in this order
    std::function<int64_t(const at::Tensor&)> length = {};  // elements of a tensor that are sent; null: all
  };

  // Uses as many threads, which wait for messages, as the backend has.
  explicit GlooExchange(c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo);
  ~GlooExchange();  // blocks until no exchange is in flight

  // The delay of the link in microseconds, the same number on all ranks, while no exchange is in flight.
  void expect_delay(double us) { eager_.expect_delay(us); }

  // True if a message of that many bytes takes one delay of the link.
  bool is_eager(int64_t bytes) const { return eager_.takes(bytes); }

  // Starts an exchange. `meanwhile` runs once all messages that depend on nothing are in flight; `done` runs at the
  // end and must not throw. Both run on a thread of the exchange. If start() throws, neither runs. All ranks must
  // start exchanges in the same order, each from one thread at a time.
  void start(Messages messages, std::chrono::milliseconds timeout, std::function<void()> meanwhile,
             std::function<void(core::Status)> done);

  // Ends all exchanges in flight, and all later ones, with an error. May be called from any thread.
  void abort();

 private:
  using Works = std::list<std::vector<c10::intrusive_ptr<c10d::Work>>>;

  using Deadline = std::chrono::steady_clock::time_point;

  // The ways that the messages of one exchange take, in their order.
  struct Incoming {
    c10::intrusive_ptr<c10d::Work> work = {};  // null: it is eager
    EagerMessages::Arriving eager = {};
  };
  struct Ways {
    int tag = 0;  // of messages that are not eager
    std::vector<Incoming> receives = {};
    std::vector<std::optional<EagerMessages::Reserved>> sends = {};  // nothing: it is not eager
  };

  Ways announce(const Messages& messages, Works::iterator works);
  core::Status transfer(const Messages& messages, Ways& ways, Works::iterator works, Deadline deadline,
                        const std::function<void()>& meanwhile);
  std::vector<c10::intrusive_ptr<c10d::Work>> send(const Messages& messages, size_t number, const Ways& ways);

  const c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  EagerMessages eager_;
  int next_tag_ = tags::kExchanges.first;
  std::mutex mutex_;
  Works works_;  // one entry for each exchange in flight
  bool aborted_ = false;
  c10::ThreadPool threads_;
};

}  // namespace gradtune
