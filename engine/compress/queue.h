// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Queues run the work of compressors. A host queue is the calling thread alone (placement `device` of a CPU job: the
// thread that runs backward) or a oneTBB arena (placement `host`). A device queue is a stream. Calls on one queue
// come from one thread at a time and run in the order of the calls. On the host queues here they have completed when
// they return; on others they are only enqueued, and a fence tells when they complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "engine/core/fence.h"
#include "engine/core/result.h"
#include "engine/core/space.h"

namespace gradtune::compress {

class Queue {
 public:
  virtual ~Queue() = default;

  virtual core::Space space() const = 0;

  // Work that is enqueued from now on begins after that fence. A queue whose calls complete when they return waits
  // here, up to the limit, and returns the error of the wait; other queues return at once.
  virtual core::Status after(const core::Fence& fence, int64_t timeout_ms) = 0;

  // A fence at the end of all work that was enqueued so far.
  virtual core::Fence mark() = 0;

  // Both pointers are memory of this queue's space, or host memory that its device can reach. The two do not overlap.
  virtual void copy(void* to, const void* from, int64_t bytes) = 0;
  virtual void fill(void* to, std::byte value, int64_t bytes) = 0;
};

// A queue of the host. Compressors cut their work into blocks whose limits do not depend on the number of threads, so
// results do not either.
class HostQueue : public Queue {
 public:
  core::Space space() const final { return core::Space::host; }
  core::Status after(const core::Fence& fence, int64_t timeout_ms) override { return fence.wait(timeout_ms); }
  core::Fence mark() override { return {}; }
  void copy(void* to, const void* from, int64_t bytes) override;
  void fill(void* to, std::byte value, int64_t bytes) override;

  // Calls body(context, i) once for each i in [0, blocks), in any order, possibly at the same time, and returns when
  // all calls are done. Must not be called from inside a body.
  virtual void for_blocks(int64_t blocks, void (*body)(void* context, int64_t block), void* context) = 0;
  virtual int threads() const = 0;
};

// Runs body(i) for each block, without allocating.
template <typename Body>
void for_blocks(HostQueue& queue, int64_t blocks, Body&& body) {
  queue.for_blocks(
      blocks, [](void* context, int64_t block) { (*static_cast<std::remove_reference_t<Body>*>(context))(block); },
      &body);
}

// Casts to a host queue; any other queue is a programmer's error.
inline HostQueue& host(Queue& queue) {
  core::check(queue.space() == core::Space::host, "work of the host goes to a host queue");
  return static_cast<HostQueue&>(queue);
}

// A stream of a device. Work runs in order, later, and no call here waits for it.
class DeviceQueue : public Queue {
 public:
  core::Space space() const final { return core::Space::cuda; }

  // The stream that kernels are launched on, a cudaStream_t.
  virtual void* stream() const = 0;
  virtual int device() const = 0;
};

// Casts to a device queue; any other queue is a programmer's error.
inline DeviceQueue& device(Queue& queue) {
  core::check(queue.space() == core::Space::cuda, "work of a device goes to its queue");
  return static_cast<DeviceQueue&>(queue);
}

// A queue that is the calling thread alone.
std::unique_ptr<HostQueue> make_serial_queue();

// A oneTBB arena of that many threads, including the calling thread.
std::unique_ptr<HostQueue> make_arena_queue(int threads);

}  // namespace gradtune::compress
