// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The interface of a device whose memory the host does not reach: memory, queues, and kernels if it has some. A back
// end implements it once (for streams of LibTorch or of CUDA; for threads, in tests).
//
// Threads: queues of streams are called by one thread at a time, the executor's communication thread. `current` is
// the queue of the calling thread. Only allocations wait for a device's work.
#pragma once

#include <cstdint>

#include "engine/compress/queue.h"
#include "engine/exec/kernels.h"
#include "engine/exec/memory.h"

namespace gradtune::exec {

// Called from a thread of the device; must be short and must not call the device.
class EndListener {
 public:
  virtual void ended(uint64_t token) = 0;

 protected:
  ~EndListener() = default;
};

class Device {
 public:
  virtual ~Device() = default;  // all queued work has ended

  // Called on each thread that was made to work with the device, before anything else. If a process sees several
  // devices, a call for one of them from a thread with another current device also takes memory of the other.
  virtual void enter() = 0;

  // The device's own memory, and memory of the host that its copies reach.
  virtual Allocator& memory() = 0;
  virtual Allocator& pinned() = 0;

  // There is one stream for compressors and kernels, one for copies of each direction, and one for collectives of
  // the device.
  enum class Stream : uint8_t { codec, to_host, to_device, collectives };
  virtual compress::Queue& queue(Stream stream) = 0;

  // The queue of the calling thread's own work: gradients are ready after it, and the work that uses averages comes
  // later on it.
  virtual compress::Queue& current() = 0;

  // Tells the listener once, when all work queued so far has ended. The listener is not told after work that failed
  // or never ends.
  virtual void notify(compress::Queue& queue, EndListener& listener, uint64_t token) = 0;

  // Null if nothing computes on this device. Its gradients are then copied to the host and back, and the host does
  // the work that options place on the device.
  virtual Kernels* kernels() = 0;
};

}  // namespace gradtune::exec
