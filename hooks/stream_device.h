// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A device of any type for which LibTorch has streams, events and pinned memory (CUDA, XPU, ...), through LibTorch's
// device-generic interface only; it contains no CUDA code. Its streams are LibTorch's, so that its work is ordered
// with the user's model: gradients are ready after the work on the stream that backward runs on.
//
// Fences are events of a ring that are recorded again and again. A point whose event was recorded anew counts as
// passed when the newer one has passed, which is later and never too early.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/core/clock.h"
#include "engine/exec/device.h"
#include "hooks/c10d/torch_versions.h"

namespace gradtune {

// Converts the times of events to a clock of the host, relative to an event whose time is known.
class EventClock {
 public:
  EventClock(const core::Clock& clock, c10::Stream stream);

  // The time of an event that has passed. None if the device does not time events.
  std::optional<int64_t> time_ns(const c10::Event& event);

 private:
  void set();  // waits for an event on a stream that has no other work

  const core::Clock& clock_;
  const c10::Stream stream_;
  std::mutex mutex_;
  c10::Event known_;
  int64_t known_ns_ = 0;
  bool is_timed_ = true;
};

class PinnedMemory;

// A public source of fences, so that queues can recognize each other's fences.
class StreamQueue final : public compress::DeviceQueue, public core::Fence::Source {
 public:
  StreamQueue(c10::Stream stream, EventClock& clock, const PinnedMemory& pinned);

  void* stream() const override { return versions::native_handle(stream_); }
  int device() const override { return stream_.device_index(); }
  core::Status after(const core::Fence& fence, int64_t timeout_ms) override;
  core::Fence mark() override;
  void copy(void* to, const void* from, int64_t bytes) override;
  void fill(void* to, std::byte value, int64_t bytes) override;

  // A mark that a listener is told of: neither it nor later marks count as passed before told() was called.
  uint64_t mark_told();
  void told(uint64_t point);
  enum class End : uint8_t { ahead, passed, failed };
  End end_of(uint64_t point) const;  // does not depend on told()

 private:
  bool passed(uint64_t point) const override;
  core::Status wait(uint64_t point, int64_t timeout_ms) const override;
  std::optional<int64_t> time_ns(uint64_t point) const override;
  c10::Event& event_of(uint64_t point) const { return events_[point % kEvents]; }

  static constexpr uint64_t kEvents = 4096;  // more than a step uses on one stream

  const c10::Stream stream_;
  EventClock& clock_;
  const PinnedMemory& pinned_;
  mutable std::mutex mutex_;  // guards the events, which are not thread-safe
  mutable std::vector<c10::Event> events_;
  uint64_t last_ = 0;
  std::vector<uint64_t> untold_;
};

// `clock` must outlive it. Throws core::Exception for a device that lacks streams or events.
std::shared_ptr<exec::Device> make_stream_device(c10::Device device, std::unique_ptr<exec::Kernels> kernels,
                                                 const core::Clock& clock);

}  // namespace gradtune
