// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/stream_device.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <new>
#include <shared_mutex>
#include <string>
#include <thread>
#include <utility>

#include "engine/core/bounded_wait.h"
#include "hooks/c10d/errors.h"
#include "hooks/refusal.h"

namespace gradtune {

// Byte tensors that hold memory of LibTorch's allocators, by address.
class TensorBlocks {
 public:
  std::byte* add(at::Tensor block) {
    auto* const data = static_cast<std::byte*>(block.data_ptr());
    const std::unique_lock lock(mutex_);
    blocks_.emplace(data, std::move(block));
    return data;
  }
  void remove(std::byte* data) {
    const std::unique_lock lock(mutex_);
    blocks_.erase(data);
  }
  bool has(const void* address) const {
    const auto* const data = static_cast<const std::byte*>(address);
    const std::shared_lock lock(mutex_);
    const auto next = blocks_.upper_bound(data);
    if (next == blocks_.begin()) return false;
    const auto& [begin, block] = *std::prev(next);
    return data - begin <= block.numel();
  }

 private:
  mutable std::shared_mutex mutex_;
  std::map<const std::byte*, at::Tensor> blocks_;
};

namespace {

using std::chrono::steady_clock;

c10::Event timed_event(c10::DeviceType type) { return c10::Event(type, c10::EventFlag::BACKEND_DEFAULT); }

at::Tensor bytes_at(const void* data, int64_t bytes, c10::Device device) {
  return at::for_blob(const_cast<void*>(data), {bytes})
      .options(at::TensorOptions(at::kByte).device(device))
      .target_device(device)
      .make_tensor();
}

template <typename Make>
at::Tensor allocated(const Make& make) {
  try {
    return make();
  } catch (const c10::OutOfMemoryError&) {
    throw std::bad_alloc();
  }
}

// A new block waits for its stream, because the memory is used on other streams.
class DeviceMemory final : public exec::Allocator {
 public:
  explicit DeviceMemory(c10::Device device) : device_(device) {}

  std::byte* allocate(int64_t bytes) override {
    const c10::impl::VirtualGuardImpl guard(device_.type());
    at::Tensor block = allocated(
        [&] { return at::zeros({std::max<int64_t>(bytes, 1)}, at::TensorOptions(at::kByte).device(device_)); });
    c10::Event zeroed(device_.type());
    zeroed.record(guard.getStream(device_));
    zeroed.synchronize();
    return blocks_.add(std::move(block));
  }
  void free(std::byte* data, int64_t /*bytes*/) noexcept override { blocks_.remove(data); }

 private:
  const c10::Device device_;
  TensorBlocks blocks_;
};

}  // namespace

class PinnedMemory final : public exec::Allocator {
 public:
  std::byte* allocate(int64_t bytes) override {
    at::Tensor block = allocated(
        [&] { return at::empty({std::max<int64_t>(bytes, 1)}, at::TensorOptions(at::kByte).pinned_memory(true)); });
    std::memset(block.data_ptr(), 0, block.nbytes());
    return blocks_.add(std::move(block));
  }
  void free(std::byte* data, int64_t /*bytes*/) noexcept override { blocks_.remove(data); }
  bool has(const void* address) const { return blocks_.has(address); }

 private:
  TensorBlocks blocks_;
};

// --- time ------------------------------------------------------------------------------------------------------------

EventClock::EventClock(const core::Clock& clock, c10::Stream stream)
    : clock_(clock), stream_(stream), known_(timed_event(stream.device_type())) {
  try {
    set();
    static_cast<void>(known_.elapsedTime(known_));
  } catch (const std::exception&) {
    is_timed_ = false;
  }
}

void EventClock::set() {
  known_.record(stream_);
  known_.synchronize();
  known_ns_ = clock_.now_ns();
}

// Devices give the time between events as a float, which is not precise for a long time.
std::optional<int64_t> EventClock::time_ns(const c10::Event& event) {
  constexpr int64_t kLongest_ns = 10'000'000'000;
  const std::lock_guard lock(mutex_);
  if (!is_timed_) return std::nullopt;
  try {
    if (clock_.now_ns() - known_ns_ > kLongest_ns) set();
    return known_ns_ + static_cast<int64_t>(known_.elapsedTime(event) * 1e6);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

// --- queues ----------------------------------------------------------------------------------------------------------

StreamQueue::StreamQueue(c10::Stream stream, EventClock& clock, const PinnedMemory& pinned)
    : stream_(stream), clock_(clock), pinned_(pinned) {
  for (uint64_t i = 0; i < kEvents; ++i) events_.push_back(timed_event(stream.device_type()));
}

core::Status StreamQueue::after(const core::Fence& fence, int64_t timeout_ms) {
  if (fence.empty()) return {};
  const auto* const other = dynamic_cast<const StreamQueue*>(fence.source());
  if (other == nullptr) return fence.wait(timeout_ms);
  if (other == this) return {};
  const std::lock_guard lock(other->mutex_);
  other->event_of(fence.point()).block(stream_);
  return {};
}

core::Fence StreamQueue::mark() {
  const std::lock_guard lock(mutex_);
  ++last_;
  event_of(last_).record(stream_);
  return {*this, last_};
}

void StreamQueue::copy(void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return;
  const auto device_of = [&](const void* data) { return pinned_.has(data) ? c10::Device(at::kCPU) : stream_.device(); };
  const c10::StreamGuard here(stream_);
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  bytes_at(to, bytes, device_of(to)).copy_(bytes_at(from, bytes, device_of(from)), /*non_blocking=*/true);
}

void StreamQueue::fill(void* to, std::byte value, int64_t bytes) {
  if (bytes == 0) return;
  const c10::StreamGuard here(stream_);
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  bytes_at(to, bytes, stream_.device()).fill_(std::to_integer<int>(value));
}

uint64_t StreamQueue::mark_told() {
  const std::lock_guard lock(mutex_);
  event_of(++last_).record(stream_);
  untold_.push_back(last_);
  return last_;
}

void StreamQueue::told(uint64_t point) {
  const std::lock_guard lock(mutex_);
  std::erase(untold_, point);
}

StreamQueue::End StreamQueue::end_of(uint64_t point) const {
  const std::lock_guard lock(mutex_);
  try {
    return event_of(point).query() ? End::passed : End::ahead;
  } catch (const std::exception&) {
    return End::failed;
  }
}

// Work that failed counts as ended.
bool StreamQueue::passed(uint64_t point) const {
  const End end = end_of(point);
  const std::lock_guard lock(mutex_);
  const bool is_told = std::ranges::none_of(untold_, [&](uint64_t each) { return each <= point; });
  return end == End::failed || (end == End::passed && is_told);
}

core::Status StreamQueue::wait(uint64_t point, int64_t timeout_ms) const {
  constexpr int kEager = 200;  // short waits poll without sleeping
  const auto deadline = steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  for (int asked = 0; !passed(point); ++asked) {
    if (steady_clock::now() >= deadline) {
      return core::Error{core::Error::Code::timeout, "work on a stream of " + stream_.device().str() +
                                                         " did not end within " + std::to_string(timeout_ms) + " ms"};
    }
    asked < kEager ? std::this_thread::yield() : std::this_thread::sleep_for(std::chrono::microseconds(30));
  }
  try {
    const std::lock_guard lock(mutex_);
    static_cast<void>(event_of(point).query());
  } catch (const std::exception& caught) {
    return core::Error{core::Error::Code::io, "the device failed: " + error_of(caught).message};
  }
  return {};
}

std::optional<int64_t> StreamQueue::time_ns(uint64_t point) const {
  if (!passed(point)) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return last_ - point < kEvents ? clock_.time_ns(event_of(point)) : std::nullopt;
}

namespace {

// --- who is told -----------------------------------------------------------------------------------------------------

// LibTorch cannot call the host in a stream's order, so a thread polls which fences have passed.
class EndWatch {
 public:
  explicit EndWatch(exec::Device& device)
      : thread_("the watch of a device's streams", [this, &device] {
          device.enter();
          watch();
        }) {}
  ~EndWatch() {
    {
      const std::lock_guard lock(mutex_);
      is_closed_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void add(StreamQueue& queue, exec::EndListener& listener, uint64_t token) {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back({&queue, queue.mark_told(), &listener, token});
    }
    changed_.notify_all();
  }

 private:
  struct Waiting {
    StreamQueue* queue;
    uint64_t point;
    exec::EndListener* listener;
    uint64_t token;
  };

  // Listeners are called outside of the lock, in order. No listener is called after work that failed.
  void watch() {
    std::vector<std::pair<Waiting, bool>> ended;
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait_for(lock, std::chrono::seconds(1), [&] { return is_closed_ || !waiting_.empty(); });
      if (is_closed_) return;
      ended.clear();
      std::erase_if(waiting_, [&](const Waiting& each) {
        const StreamQueue::End end = each.queue->end_of(each.point);
        if (end != StreamQueue::End::ahead) ended.emplace_back(each, end == StreamQueue::End::passed);
        return end != StreamQueue::End::ahead;
      });
      const bool is_idle = ended.empty() && !waiting_.empty();
      lock.unlock();
      for (const auto& [each, has_passed] : ended) {
        if (has_passed) each.listener->ended(each.token);
        each.queue->told(each.point);
      }
      if (is_idle) std::this_thread::sleep_for(std::chrono::microseconds(20));
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Waiting> waiting_;
  bool is_closed_ = false;
  core::BoundedThread thread_;
};

// --- the device ------------------------------------------------------------------------------------------------------

class StreamDevice final : public exec::Device {
 public:
  StreamDevice(c10::Device device, std::unique_ptr<exec::Kernels> kernels, const core::Clock& clock)
      : device_(device),
        guard_(device.type()),
        kernels_(std::move(kernels)),
        memory_(device),
        clock_(clock, stream(0)),
        watch_(*this) {
    constexpr size_t kStreams = 4;  // exec::Device::Stream
    constexpr int kUrgent = -1;     // for work that others wait for, ahead of the model's own computation
    while (queues_.size() < kStreams) {
      queues_.push_back(std::make_unique<StreamQueue>(stream(kUrgent), clock_, pinned_));
    }
  }
  ~StreamDevice() override {
    for (const auto& queue : queues_) static_cast<void>(queue->mark().wait(core::kMostWaitMs));
  }

  void enter() override { guard_.setDevice(device_); }
  exec::Allocator& memory() override { return memory_; }
  exec::Allocator& pinned() override { return pinned_; }
  compress::Queue& queue(Stream stream) override { return *queues_[static_cast<size_t>(stream)]; }

  compress::Queue& current() override {
    const c10::Stream stream = guard_.getStream(device_);
    const std::lock_guard lock(mutex_);
    std::unique_ptr<StreamQueue>& queue = current_[stream.id()];
    if (!queue) queue = std::make_unique<StreamQueue>(stream, clock_, pinned_);
    return *queue;
  }

  void notify(compress::Queue& queue, exec::EndListener& listener, uint64_t token) override {
    watch_.add(static_cast<StreamQueue&>(queue), listener, token);
  }

  exec::Kernels* kernels() override { return kernels_.get(); }

 private:
  c10::Stream stream(int priority) const { return guard_.getNewStream(device_, priority); }

  const c10::Device device_;
  const c10::impl::VirtualGuardImpl guard_;
  const std::unique_ptr<exec::Kernels> kernels_;
  DeviceMemory memory_;
  PinnedMemory pinned_;
  EventClock clock_;
  std::vector<std::unique_ptr<StreamQueue>> queues_;
  std::mutex mutex_;
  std::map<c10::StreamId, std::unique_ptr<StreamQueue>> current_;  // for the user's threads
  EndWatch watch_;                                                 // destroyed first, because it uses the others
};

}  // namespace

std::shared_ptr<exec::Device> make_stream_device(c10::Device device, std::unique_ptr<exec::Kernels> kernels,
                                                 const core::Clock& clock) {
  try {
    return std::make_shared<StreamDevice>(device, std::move(kernels), clock);
  } catch (const std::exception& caught) {
    refuse("gradients can not be on " + device.str() +
           ", whose streams, events or pinned memory LibTorch does not "
           "give: " +
           error_of(caught).message);
  }
}

}  // namespace gradtune
