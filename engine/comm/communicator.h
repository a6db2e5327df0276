// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The contract of a communicator: collectives over a fixed group of ranks. Calls must come in the same order on all
// ranks, from one thread at a time; collectives may complete in any order. Buffers belong to the caller and stay
// untouched until the completion was told. Nothing waits for ever: a collective that outlives its deadline completes
// with an error, after which the communicator is dead (with most transports a timeout leaves unknown bytes in flight)
// and all that is under way or started later completes with an error too.
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
  // Those of programs (core/option.h), never encode or decode:
  //   all_reduce      in place in `out`, count elements
  //   reduce_scatter  `in`: size * count; `out`: count elements, the sums of part `rank`; in place where `out` is that
  //                   part of `in`, the rest of which may be overwritten
  //   all_gather      `in`: count elements; `out`: size * count, in rank order; in place where `in` is part `rank` of
  //                   `out`
  //   all_to_all      `in` and `out`: size * count; part r of `in` goes to rank r, part r of `out` came from it
  //   reduce          in place in `out`, count elements, to rank `root`; `out` of the others may be overwritten
  //   broadcast       `out`, count elements, from rank `root`
  //   gather          as all_gather, to rank `root`; `out` of the others is left alone
  using Kind = core::Step::Kind;
  Kind kind;
  using Reduction = core::Reduction;
  Reduction reduction = Reduction::sum;
  WireType type = WireType::u8;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  int64_t count = 0;
  // Of exchanges: what a rank gives to another one is whole payloads of so many bytes, and of each only those that it
  // says it uses (CompressorTraits::used_bytes) have to arrive; what is behind them in `out` is left open. Null: all.
  int64_t payload_bytes = 0;
  int64_t (*used_bytes)(std::span<const std::byte> payload) = nullptr;
  // Of an all_gather: it is among those of the group's ranks that are so far apart, and `size` above, parts and their
  // order are those of these. Every rank of the group starts it, each for its own subgroup. Nothing: among all.
  std::optional<core::Subgroup> among = {};
  int root = 0;
  int64_t timeout_ms = 300'000;
  core::Fence after = {};        // its buffers are ready then
  std::byte* scratch = nullptr;  // scratch_bytes of the communicator; its own while the collective is under way
};

// That a collective is among, in a group of that size.
inline core::Subgroup ranks_of(const Collective& collective, int size) {
  return collective.among.value_or(core::Subgroup{size, 1});
}

// Of one of a collective's payloads.
int64_t used_bytes(const Collective& collective, const std::byte* payload);

// As core::link_bytes, of what is used, in a group of that size: what this rank sends is looked at, and others are
// taken to send as much.
int64_t link_bytes(const Collective& collective, int size);

// Told exactly once per started collective, from any thread; must be short and must not start collectives or throw.
class CompletionSink {
 public:
  virtual ~CompletionSink() = default;

  // What was received is there once `done` has passed, if the communicator is in good health then; one of the host
  // tells when it is.
  virtual void complete(uint64_t token, core::Status status, core::Fence done) = 0;
};

// Tells it. What a sink throws, against its contract, is lost: its owner waits in vain, up to its limit, and the
// communicator's thread and all others that it has to tell go on.
void tell(CompletionSink& sink, uint64_t token, core::Status status, core::Fence done = {}) noexcept;

class Communicator {
 public:
  virtual ~Communicator() = default;  // blocks until nothing is under way; call abort() first to make that soon

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual core::Space space() const { return core::Space::host; }  // of buffers

  // Of a collective of that kind, type and count. It is the caller's memory, so that all that gradtune allocates is
  // counted in one place.
  virtual int64_t scratch_bytes(const Collective& /*collective*/) const { return 0; }

  // What it throws (a programmer's error; no memory) says that this collective was not started: its sink is not told.
  // Other ranks may have started theirs, so that nothing but abort() makes sense then. A communicator of the host waits
  // here for `after`, within the collective's time limit.
  virtual void start(const Collective& collective, CompletionSink& sink, uint64_t token) = 0;

  // Of a communicator whose fences pass also where what they stand for was aborted: an error once that has happened.
  // Asked when they have passed.
  virtual core::Status health() const { return {}; }

  // Makes everything under way and everything later complete with an error. From any thread.
  virtual void abort() = 0;
};

// For communicators of the host: waits until the buffers are ready. Where that fails the sink is told, and nothing is
// to be started.
bool await_buffers(const Collective& collective, CompletionSink& sink, uint64_t token);

// As far as it gets: a transport may throw while it is torn down, and then deadlines end what is under way.
void abort_anyway(Communicator& communicator) noexcept;

// Of one collective. Outlives it.
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

// A collective that outlives its deadline completes with an error by itself; whoever waits for that waits so long at
// most.
constexpr int64_t completion_limit_ms(int64_t timeout_ms) { return timeout_ms + timeout_ms / 4 + 1000; }

// Starts it and waits for its completion, for use outside the executor (set-up, strategy broadcasts). The alarm is
// asked every kAlarmPeriodMs: an error, such as that another rank has failed and will not come, aborts the communicator
// and is returned. So is a completion that does not come in time, and what starting it or the alarm throws. Once
// aborted, it has to complete within `most_abort_ms`, or the process ends (engine/core/bounded_wait.h): its buffers are
// the caller's. Scratch memory that a collective lacks is allocated.
constexpr int64_t kAlarmPeriodMs = 250;
core::Status run(Communicator& communicator, const Collective& collective,
                 const std::function<core::Status()>& alarm = {}, int64_t most_abort_ms = core::kMostWaitMs);

// The same for several that are under way at once, in this order; the error of the first that has one.
core::Status run(Communicator& communicator, std::span<const Collective> collectives,
                 const std::function<core::Status()>& alarm = {}, int64_t most_abort_ms = core::kMostWaitMs);

}  // namespace gradtune::comm
