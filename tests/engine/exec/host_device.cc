// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/exec/host_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "engine/core/bounded_wait.h"
#include "engine/core/clock.h"
#include "engine/core/round_up.h"

namespace gradtune::exec {
namespace {

ThreadQueue& thread_queue(compress::Queue& queue) {
  core::check(queue.space() == core::Space::cuda, "work of a device goes to its queue");
  return static_cast<ThreadQueue&>(queue);
}

thread_local const void* current_device = nullptr;

int64_t now_ns() { return core::SteadyClock().now_ns(); }

}  // namespace

// --- memory ----------------------------------------------------------------------------------------------------------

class HostDevice::Memory final : public Allocator {
 public:
  std::byte* allocate(int64_t bytes) override {
    const auto size = static_cast<size_t>(core::round_up(std::max<int64_t>(bytes, 1), 4096));
    const int file = memfd_create("host_device", 0);
    if (file < 0 || ftruncate(file, static_cast<off_t>(size)) != 0) throw std::bad_alloc();
    void* const outside = mmap(nullptr, size, PROT_NONE, MAP_SHARED, file, 0);
    void* const inside = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ::close(file);
    if (outside == MAP_FAILED || inside == MAP_FAILED) throw std::bad_alloc();
    const std::unique_lock lock(mutex_);
    live_ += bytes;
    blocks_[static_cast<std::byte*>(outside)] = {static_cast<std::byte*>(inside), size};
    return static_cast<std::byte*>(outside);
  }
  void free(std::byte* data, int64_t bytes) noexcept override {
    const std::unique_lock lock(mutex_);
    const auto found = blocks_.find(data);
    munmap(found->second.inside, found->second.size);
    munmap(data, found->second.size);
    blocks_.erase(found);
    live_ -= bytes;
  }

  // Null for memory that is not its own.
  std::byte* reach(const std::byte* address) const {
    const std::shared_lock lock(mutex_);
    auto found = blocks_.upper_bound(const_cast<std::byte*>(address));
    if (found == blocks_.begin()) return nullptr;
    --found;
    const std::ptrdiff_t offset = address - found->first;
    return offset <= static_cast<std::ptrdiff_t>(found->second.size) ? found->second.inside + offset : nullptr;
  }
  int64_t live() const {
    const std::shared_lock lock(mutex_);
    return live_;
  }

 private:
  struct Block {
    std::byte* inside;
    size_t size;
  };
  mutable std::shared_mutex mutex_;
  std::map<std::byte*, Block> blocks_;
  int64_t live_ = 0;
};

class HostDevice::Pinned final : public Allocator {
 public:
  std::byte* allocate(int64_t bytes) override {
    AlignedBytes block = AlignedBytes::zeros(std::max<int64_t>(bytes, 1));
    std::byte* const data = block.data();
    const std::unique_lock lock(mutex_);
    blocks_.emplace(data, std::move(block));
    return data;
  }
  void free(std::byte* data, int64_t) noexcept override {
    const std::unique_lock lock(mutex_);
    blocks_.erase(data);
  }
  bool has(const std::byte* address) const {
    const std::shared_lock lock(mutex_);
    auto found = blocks_.upper_bound(const_cast<std::byte*>(address));
    return found != blocks_.begin() && address - (--found)->first <= found->second.bytes();
  }

 private:
  mutable std::shared_mutex mutex_;
  std::map<std::byte*, AlignedBytes> blocks_;
};

// --- queues ----------------------------------------------------------------------------------------------------------

ThreadQueue::ThreadQueue(HostDevice& device, std::string name, uint64_t seed)
    : device_(device), name_(std::move(name)), rng_(seed), thread_([this] { work(); }) {}

ThreadQueue::~ThreadQueue() {
  close();
  ask({});
  thread_.join();
}

void ThreadQueue::close() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  changed_.notify_all();
}

bool ThreadQueue::is_idle() const {
  const std::lock_guard lock(mutex_);
  return done_ == asked_;
}

void ThreadQueue::ask(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  ++asked_;
  tasks_.push_back(std::move(work));
  changed_.notify_all();
}

void ThreadQueue::work() {
  const HostDeviceOptions& options = device_.options();
  for (;;) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      const auto is_stuck = [&] { return options.hangs && options.hangs(name_); };
      while (tasks_.empty() || (is_stuck() && !is_closed_)) changed_.wait_for(lock, std::chrono::milliseconds(20));
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    if (!task) return;
    if (options.delay_us) std::this_thread::sleep_for(std::chrono::microseconds(options.delay_us(name_, rng_)));
    std::optional<core::Error> failure;
    try {
      if (!failure_) task();
    } catch (...) {
      failure = core::caught_error("on a queue of the device");
    }
    task = nullptr;
    const std::lock_guard lock(mutex_);
    ++done_;
    if (failure) {
      failure_ = failure;
      failed_at_ = done_;
    }
    changed_.notify_all();
  }
}

// The queue waits without a limit, like a stream: the limit is for queues of the host.
core::Status ThreadQueue::after(const core::Fence& fence, int64_t /*timeout_ms*/) {
  if (fence.empty()) return {};
  const auto& skips = device_.options().skips_wait;
  if (skips && skips(device_.asked_on(fence), name_)) return {};
  ask([fence] { fence.wait(core::kMostWaitMs).value(); });
  return {};
}

core::Fence ThreadQueue::mark() {
  device_.note_caller();
  uint64_t point = 0;
  {
    const std::lock_guard lock(mutex_);
    point = ++asked_;
    tasks_.emplace_back([this, point] {
      const std::lock_guard inner(mutex_);
      times_[point] = now_ns();
      if (times_.size() > 4096) times_.erase(times_.begin());
    });
    changed_.notify_all();
  }
  const core::Fence fence(*this, point);
  if (device_.options().skips_wait) device_.remember(fence, name_);
  return fence;
}

core::Status ThreadQueue::wait(uint64_t point, int64_t timeout_ms) const {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] { return done_.load() >= point; })) {
    return core::Error{core::Error::Code::timeout,
                       "work on queue " + name_ + " did not end within " + std::to_string(timeout_ms) + " ms"};
  }
  if (failure_ && point >= failed_at_) return *failure_;
  return {};
}

std::optional<int64_t> ThreadQueue::time_ns(uint64_t point) const {
  const std::lock_guard lock(mutex_);
  const auto found = times_.find(point);
  return found == times_.end() ? std::nullopt : std::optional(found->second);
}

void ThreadQueue::copy(void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return;
  ask([this, to, from, bytes] { std::memcpy(device_.reach(to), device_.reach(from), static_cast<size_t>(bytes)); });
}

void ThreadQueue::fill(void* to, std::byte value, int64_t bytes) {
  if (bytes == 0) return;
  ask([this, to, value, bytes] {
    std::memset(device_.reach(to), std::to_integer<int>(value), static_cast<size_t>(bytes));
  });
}

// --- the device ------------------------------------------------------------------------------------------------------

HostDevice::HostDevice(HostDeviceOptions options)
    : options_(std::move(options)), memory_(std::make_unique<Memory>()), pinned_(std::make_unique<Pinned>()) {
  uint64_t seed = options_.seed;
  for (const char* name : {"codec", "to_host", "to_device", "collectives", "current"}) {
    queues_.push_back(std::make_unique<ThreadQueue>(*this, name, ++seed));
  }
}

// Work that waits for another queue ends before that queue is destroyed.
HostDevice::~HostDevice() {
  close();
  for (const auto& queue : queues_) (void)queue->mark().wait(10'000);
}

void HostDevice::close() {
  for (const auto& queue : queues_) queue->close();
}

std::byte* HostDevice::reach(const void* address) const {
  const auto* const bytes = static_cast<const std::byte*>(address);
  if (std::byte* inside = memory_->reach(bytes)) return inside;
  core::check(pinned_->has(bytes), "a queue of the device was given memory of the host that is not pinned");
  return const_cast<std::byte*>(bytes);
}

void HostDevice::enter() { current_device = this; }

// Uses no lock, which would order threads that nothing else orders.
void HostDevice::note_caller() {
  if (current_device != this) strangers_.fetch_add(1, std::memory_order_relaxed);
}

Allocator& HostDevice::memory() { return *memory_; }

Allocator& HostDevice::pinned() { return *pinned_; }

void HostDevice::remember(const core::Fence& fence, const std::string& queue) {
  const std::lock_guard lock(marks_mutex_);
  marks_.emplace_back(fence, queue);
}

std::string HostDevice::asked_on(const core::Fence& fence) const {
  const std::lock_guard lock(marks_mutex_);
  const auto found = std::ranges::find(marks_, fence, &std::pair<core::Fence, std::string>::first);
  return found == marks_.end() ? "" : found->second;
}

bool HostDevice::is_idle() const {
  return std::ranges::all_of(queues_, [](const auto& queue) { return queue->is_idle(); });
}

int64_t HostDevice::live_bytes() const { return memory_->live(); }

void HostDevice::notify(compress::Queue& queue, EndListener& listener, uint64_t token) {
  ThreadQueue& here = thread_queue(queue);
  if (options_.tells_early && options_.tells_early(here.name())) return listener.ended(token);
  ++untold_;
  here.ask([this, &listener, token] {
    std::this_thread::sleep_for(std::chrono::microseconds(options_.tells_late_us));
    listener.ended(token);
    --untold_;
  });
}

void HostDevice::ask(compress::Queue& queue, std::function<void()> work) const {
  thread_queue(queue).ask(std::move(work));
}

}  // namespace gradtune::exec
