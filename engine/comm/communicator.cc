// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/comm/communicator.h"

#include <future>

namespace gradtune::comm {

int64_t link_bytes(const Collective& collective, int size) {
  return core::link_bytes(collective.kind, collective.count * bytes_per_element(collective.type), size);
}

core::Status run(Communicator& communicator, const Collective& collective) {
  class Waiter final : public CompletionSink {
   public:
    void complete(uint64_t, core::Status status) override { promise_.set_value(std::move(status)); }
    core::Status wait() { return promise_.get_future().get(); }

   private:
    std::promise<core::Status> promise_;
  } waiter;
  communicator.start(collective, waiter, 0);
  return waiter.wait();
}

}  // namespace gradtune::comm
