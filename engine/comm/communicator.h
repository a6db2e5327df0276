// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The contract of a communicator: collectives over a fixed group of ranks. Calls must come in the same order on all
// ranks, from one thread at a time; collectives may complete in any order. Buffers belong to the caller and must not
// be touched until completion is reported. No call waits forever: a collective that exceeds its deadline completes
// with an error. After that the communicator is dead, as with most transports a timeout leaves an unknown number of
// bytes in flight. All collectives that are under way or started later then complete with an error too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "engine/core/bounded_wait.h"
#include "engine/core/fence.h"
#include "engine/core/option.h"
#include "engine/core/result.h"
#include "engine/core/space.h"
#include "engine/core/topology.h"
#include "engine/core/wire.h"

namespace gradtune::comm {

using core::bytes_per_element;
using core::WireType;

struct Collective {
  // The collectives of programs (core/option.h); never encode or decode.
  // - all_reduce: in place in `out`, count elements.
  // - reduce_scatter: `in` has size * count elements, `out` has count elements, the sums of part `rank`. It is in
  //   place if `out` is that part of `in`; the rest of `in` may be overwritten.
  // - all_gather: `in` has count elements, `out` has size * count, in rank order. It is in place if `in` is part
  //   `rank` of `out`.
  // - all_to_all: `in` and `out` have size * count elements. Part r of `in` goes to rank r, and part r of `out`
  //   comes from it.
  // - reduce: in place in `out`, count elements, to rank `root`; `out` of the other ranks may be overwritten.
  // - broadcast: `out`, count elements, from rank `root`.
  // - gather: as all_gather, to rank `root`; `out` of the other ranks is not touched.
  using Kind = core::Step::Kind;
  Kind kind;
  using Reduction = core::Reduction;
  Reduction reduction = Reduction::sum;
  WireType type = WireType::u8;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  int64_t count = 0;
  // For exchanges of payloads: each rank sends whole payloads of `payload_bytes` bytes. Only the bytes that a
  // payload says it uses (CompressorTraits::used_bytes) have to arrive; the contents of `out` behind them are
  // undefined. Null: all bytes have to arrive.
  int64_t payload_bytes = 0;
  int64_t (*used_bytes)(std::span<const std::byte> payload) = nullptr;
  // For an all_gather: the subgroup of the group's ranks that takes part. `size` above, the parts and their order
  // then refer to the subgroup. Every rank of the group starts the collective, each for its own subgroup. Empty: all
  // ranks take part.
  std::optional<core::Subgroup> among = {};
  int root = 0;
  int64_t timeout_ms = 300'000;
  core::Fence after = {};        // its buffers are ready when this has passed
  std::byte* scratch = nullptr;  // scratch_bytes() of memory for the communicator while the collective is under way
};

// The ranks that take part in a collective, in a group of that size.
inline core::Subgroup ranks_of(const Collective& collective, int size) {
  return collective.among.value_or(core::Subgroup{size, 1});
}

// The number of bytes used of one of a collective's payloads.
int64_t used_bytes(const Collective& collective, const std::byte* payload);

// The same as core::link_bytes, but counts used bytes only, in a group of that size. The payloads of this rank are
// inspected, and the other ranks are assumed to send as much.
int64_t link_bytes(const Collective& collective, int size);

// Called exactly once for each started collective, from any thread; must be short and must not start collectives or
// throw.
class CompletionSink {
 public:
  virtual ~CompletionSink() = default;

  // The received data is complete once `done` has passed and if the communicator's health() is good then. A
  // communicator of the host calls this when the data is complete.
  virtual void complete(uint64_t token, core::Status status, core::Fence done) = 0;
};

// Calls the sink. An exception that a sink throws, against its contract, is dropped. Its owner then waits in vain,
// up to its limit, but the communicator's thread and all other sinks go on.
void tell(CompletionSink& sink, uint64_t token, core::Status status, core::Fence done = {}) noexcept;

class Communicator {
 public:
  virtual ~Communicator() = default;  // blocks until nothing is under way; abort() makes that soon

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual core::Space space() const { return core::Space::host; }  // of buffers

  // The scratch memory that a collective of that kind, type and count needs. The caller provides it, so that all
  // memory of gradtune is counted in one place.
  virtual int64_t scratch_bytes(const Collective& /*collective*/) const { return 0; }

  // The delay of a message over the group's link in microseconds, the same number on all ranks. No collective is under
  // way. A communicator may spend memory and copies on hiding a long one.
  virtual void expect_delay(double /*us*/) {}

  // An exception (a programmer's error, or no memory) means that this collective was not started and that its sink
  // will not be called. Other ranks may have started theirs, so that only abort() makes sense then. A communicator
  // of the host waits here for `after`, within the collective's time limit.
  virtual void start(const Collective& collective, CompletionSink& sink, uint64_t token) = 0;

  // For communicators whose fences also pass when the work before them was aborted: an error once that has happened.
  // Callers ask after the fences have passed.
  virtual core::Status health() const { return {}; }

  // Makes all collectives, under way or started later, complete with an error. Called from any thread.
  virtual void abort() = 0;
};

// For communicators of the host: waits until the buffers are ready. If that fails, the sink is told, and the
// collective must not be started.
bool await_buffers(const Collective& collective, CompletionSink& sink, uint64_t token);

// Aborts as far as possible: a transport may throw while it is torn down, and then deadlines end the collectives
// under way.
void abort_anyway(Communicator& communicator) noexcept;

// Waits for one collective, and must outlive it.
class Waiter final : public CompletionSink {
 public:
  void complete(uint64_t, core::Status status, core::Fence done) override {
    done_ = done;
    promise_.set_value(std::move(status));
  }
  std::future<core::Status> result() { return promise_.get_future(); }  // once
  const core::Fence& done() const { return done_; }                     // after the result

 private:
  std::promise<core::Status> promise_;
  core::Fence done_;
};

// The longest wait for a completion: a collective that exceeds its deadline completes with an error by itself.
constexpr int64_t completion_limit_ms(int64_t timeout_ms) { return timeout_ms + timeout_ms / 4 + 1000; }

// Starts a collective and waits for its completion, for use outside of the executor (set-up, strategy broadcasts).
// `alarm` is called every kAlarmPeriodMs. An error from it, such as that another rank has failed and will not come,
// aborts the communicator and is returned. The same holds for a completion that is late, and for exceptions from
// `start` or the alarm. Once aborted, the collective has to complete within `most_abort_ms`, because its buffers are
// the caller's; otherwise the process ends (engine/core/bounded_wait.h). If a collective lacks scratch memory, it is
// allocated.
constexpr int64_t kAlarmPeriodMs = 250;
core::Status run(Communicator& communicator, const Collective& collective,
                 const std::function<core::Status()>& alarm = {}, int64_t most_abort_ms = core::kMostWaitMs);

// The same for several collectives that are under way at once, started in this order; returns the first error.
core::Status run(Communicator& communicator, std::span<const Collective> collectives,
                 const std::function<core::Status()>& alarm = {}, int64_t most_abort_ms = core::kMostWaitMs);

}  // namespace gradtune::comm
