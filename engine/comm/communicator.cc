// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/comm/communicator.h"

#include <future>

namespace gradtune::comm {

int64_t link_bytes(const Collective& collective, int size) {
  const int64_t bytes = collective.count * bytes_per_element(collective.type);
  switch (collective.kind) {
    case Collective::Kind::all_reduce: return 2 * bytes * (size - 1) / size;  // ring: reduce-scatter, all-gather
    case Collective::Kind::reduce_scatter:
    case Collective::Kind::all_gather:
    case Collective::Kind::all_to_all:
    case Collective::Kind::gather: return bytes * (size - 1);  // ring, ring, pairwise, into the root
    case Collective::Kind::reduce:
    case Collective::Kind::broadcast: return size > 1 ? bytes : 0;  // pipelines
  }
  return 0;
}

const char* to_string(Collective::Kind kind) {
  switch (kind) {
    case Collective::Kind::all_reduce: return "all-reduce";
    case Collective::Kind::reduce_scatter: return "reduce-scatter";
    case Collective::Kind::all_gather: return "all-gather";
    case Collective::Kind::all_to_all: return "all-to-all";
    case Collective::Kind::reduce: return "reduce";
    case Collective::Kind::broadcast: return "broadcast";
    case Collective::Kind::gather: return "gather";
  }
  return "unknown";
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
