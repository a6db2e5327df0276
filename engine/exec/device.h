// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What an executor needs of a device whose memory the host does not reach: memory, queues, and kernels where it has
// some. A back end implements this interface once (streams of LibTorch, of CUDA; threads, in tests).
//
// Which thread calls what: queues of streams are called by one thread at a time, the executor's communication thread.
// `current` is that of the calling thread. Nothing here waits for a device's work, but for allocations.
#pragma once

#include <cstdint>

#include "engine/compress/queue.h"
#include "engine/exec/kernels.h"
#include "engine/exec/memory.h"

namespace gradtune::exec {

// Told from a thread of the device's own; must be short and must not call the device.
class EndListener {
 public:
  virtual void ended(uint64_t token) = 0;

 protected:
  ~EndListener() = default;
};

class Device {
 public:
  virtual ~Device() = default;  // all work that was asked for has ended

  // On each thread that was made to work with it, before anything else. Where a process sees several devices, a call
  // for one of them from a thread whose current one is another takes memory of that one, too.
  virtual void enter() = 0;

  // Its own, and memory of the host that its copies reach.
  virtual Allocator& memory() = 0;
  virtual Allocator& pinned() = 0;

  // Streams: compressors and kernels have one, copies of each direction as well, and collectives of the device.
  enum class Stream : uint8_t { codec, to_host, to_device, collectives };
  virtual compress::Queue& queue(Stream stream) = 0;

  // Where the work of the calling thread goes: gradients are ready behind it, and what uses averages comes later there.
  virtual compress::Queue& current() = 0;

  // Tells the listener once, when all that was asked of the queue so far has ended. Behind work that failed or never
  // ends it is not told.
  virtual void notify(compress::Queue& queue, EndListener& listener, uint64_t token) = 0;

  // Null where nothing computes on this device: its gradients are copied to the host and back then, and what options
  // place on the device is done by the host.
  virtual Kernels* kernels() = 0;
};

}  // namespace gradtune::exec
