// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A device without hardware: queues are threads, and its memory is mapped twice. No thread can access the addresses
// that it gives out; queues use the other mapping. So an executor that accesses a device's memory without a queue
// ends in a segmentation fault, and a copy to or from unpinned memory of the host is an error. Compressors and
// kernels are the host's, and the thread of the queue runs them.
//
// It serves tests of all ordering: work can be delayed at random or stopped, and waits can be left out.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/rng.h"
#include "engine/exec/device.h"
#include "tests/engine/exec/host_kernels.h"

namespace gradtune::exec {

struct HostDeviceOptions {
  // Delay before each piece of work on that queue ("codec", "to_host", "to_device", "collectives", "current").
  std::function<int64_t(const std::string& queue, core::Rng& rng)> delay_us = {};
  uint64_t seed = 0;
  bool has_kernels = true;
  std::string lacks = {};     // the name of a compressor without a kernel
  int64_t tells_late_us = 0;  // delay of listeners behind the work that they wait for
  // Faults to inject: a wait that is left out, a listener that is told at once, and work that never ends until the
  // device is closed.
  std::function<bool(const std::string& from, const std::string& to)> skips_wait = {};
  std::function<bool(const std::string& queue)> tells_early = {};
  std::function<bool(const std::string& queue)> hangs = {};
};

class HostDevice;

class ThreadQueue final : public compress::Queue, private core::Fence::Source {
 public:
  ThreadQueue(HostDevice& device, std::string name, uint64_t seed);
  ~ThreadQueue() override;

  core::Space space() const override { return core::Space::cuda; }
  core::Status after(const core::Fence& fence, int64_t timeout_ms) override;
  core::Fence mark() override;
  void copy(void* to, const void* from, int64_t bytes) override;
  void fill(void* to, std::byte value, int64_t bytes) override;

  void ask(std::function<void()> work);
  const std::string& name() const { return name_; }
  void close();  // ends work that hangs
  bool is_idle() const;

 private:
  bool passed(uint64_t point) const override { return done_.load() >= point; }
  core::Status wait(uint64_t point, int64_t timeout_ms) const override;
  std::optional<int64_t> time_ns(uint64_t point) const override;
  void work();

  HostDevice& device_;
  const std::string name_;
  core::Rng rng_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::map<uint64_t, int64_t> times_;   // of marks
  std::optional<core::Error> failure_;  // of the first work that failed; nothing runs after it
  uint64_t asked_ = 0, failed_at_ = 0;
  std::atomic<uint64_t> done_ = 0;
  bool is_closed_ = false;
  std::thread thread_;
};

class HostDevice final : public Device, public HostKernels {
 public:
  explicit HostDevice(HostDeviceOptions options = {});
  ~HostDevice() override;

  void enter() override;
  Allocator& memory() override;
  Allocator& pinned() override;
  ThreadQueue& queue(Stream stream) override { return *queues_[static_cast<size_t>(stream)]; }
  ThreadQueue& current() override { return *queues_.back(); }
  void notify(compress::Queue& queue, EndListener& listener, uint64_t token) override;
  bool lacks(const core::CompressorSpec& spec) const override { return spec.name == options_.lacks; }
  Kernels* kernels() override { return options_.has_kernels ? this : nullptr; }
  void ask(compress::Queue& queue, std::function<void()> work) const override;

  void close();  // ends work that hangs

  // Throws for memory of the host that is not pinned.
  std::byte* reach(const void* address) const override;
  using HostKernels::reach;
  const HostDeviceOptions& options() const { return options_; }
  void remember(const core::Fence& fence, const std::string& queue);
  std::string asked_on(const core::Fence& fence) const;
  // Bytes of all its present allocations.
  int64_t live_bytes() const;
  // Listeners that were not told yet.
  int64_t untold() const { return untold_; }
  // Counts requests for a mark by threads with another current device.
  void note_caller();
  int64_t strangers() const { return strangers_; }
  // No requested work is left.
  bool is_idle() const;

 private:
  class Memory;
  class Pinned;

  const HostDeviceOptions options_;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<Pinned> pinned_;
  mutable std::mutex marks_mutex_;
  std::deque<std::pair<core::Fence, std::string>> marks_;  // used if waits may be left out
  std::atomic<int64_t> untold_ = 0, strangers_ = 0;
  std::vector<std::unique_ptr<ThreadQueue>> queues_;
};

}  // namespace gradtune::exec
