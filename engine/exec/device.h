// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What an executor needs of a device whose memory the host does not reach: memory, queues, compressors, and the few
// kernels that are not compressors. A back end implements this interface once (CUDA; threads, in tests).
//
// Which thread calls what: queues of streams are called by one thread at a time, the executor's communication thread.
// `current` is that of the calling thread. Nothing here waits for a device's work, but for allocations.
//
// Jobs are read before a call returns. All memory that they name is the device's, or pinned; results are there when the
// queue's work is done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "engine/compress/compressor.h"
#include "engine/compress/queue.h"
#include "engine/compress/scaling.h"
#include "engine/core/gradient_table.h"
#include "engine/core/result.h"
#include "engine/exec/draining.h"
#include "engine/exec/loss_sample.h"
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

  // Its own, and memory of the host that its copies reach.
  virtual Allocator& memory() = 0;
  virtual Allocator& pinned() = 0;

  // Streams: compressors and kernels have one, copies of each direction as well.
  enum class Stream : uint8_t { codec, to_host, to_device };
  virtual compress::Queue& queue(Stream stream) = 0;

  // Where the work of the calling thread goes: gradients are ready behind it, and what uses averages comes later there.
  virtual compress::Queue& current() = 0;

  // Tells the listener once, when all that was asked of the queue so far has ended. Behind work that failed or never
  // ends it is not told.
  virtual void notify(compress::Queue& queue, EndListener& listener, uint64_t token) = 0;

  // What works on this device's queues, with the traits and payloads of the host's of the same spec. An error where it
  // has none.
  virtual core::Result<std::unique_ptr<compress::Compressor>> make_compressor(
      const core::CompressorSpec& spec) const = 0;

  // As the functions of these names (compress/scaling.h, nonfinite.h, draining.h, loss_sample.h), with the same bits.
  virtual void scale(const compress::Scaling& job, compress::Queue& queue) = 0;
  virtual void scale(const NumbersScaling& job, compress::Queue& queue) = 0;
  virtual void make_nans_alike(std::byte* numbers, core::DType dtype, int64_t n, compress::Queue& queue) = 0;
  virtual void drain(const Drain& job, Drained& result, compress::Queue& queue) = 0;
  virtual void drain(const ParkedDrain& job, Drained& result, compress::Queue& queue) = 0;
  virtual void add_squares(const RunSquares& job, compress::Queue& queue) = 0;
};

}  // namespace gradtune::exec
