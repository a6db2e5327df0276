// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/cuda/device.h"

#include <cuda_runtime.h>

#include <array>
#include <chrono>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/compress/cuda/device.cuh"
#include "engine/core/bounded_wait.h"
#include "engine/exec/cuda/kernels.h"

namespace gradtune::exec::cuda {
namespace {

using compress::cuda::error_of;
using compress::cuda::must;
using compress::cuda::OnDevice;

class DeviceMemory final : public Allocator {
 public:
  explicit DeviceMemory(int device) : device_(device) {}

  std::byte* allocate(int64_t bytes) override {
    const OnDevice here(device_);
    void* data = nullptr;
    if (cudaMalloc(&data, static_cast<size_t>(bytes)) != cudaSuccess) throw std::bad_alloc();
    must(cudaMemset(data, 0, static_cast<size_t>(bytes)), "cudaMemset");
    must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    return static_cast<std::byte*>(data);
  }
  void free(std::byte* data, int64_t /*bytes*/) noexcept override { cudaFree(data); }

 private:
  const int device_;
};

class PinnedMemory final : public Allocator {
 public:
  std::byte* allocate(int64_t bytes) override {
    void* data = nullptr;
    if (cudaMallocHost(&data, static_cast<size_t>(bytes)) != cudaSuccess) throw std::bad_alloc();
    return std::fill_n(static_cast<std::byte*>(data), bytes, std::byte{0}) - bytes;
  }
  void free(std::byte* data, int64_t /*bytes*/) noexcept override { cudaFreeHost(data); }
};

// Computes the times of events from their distance to an event whose time on the host's clock is known. CUDA gives
// the distance as a float, so the known event must be recent.
class EventClock {
 public:
  EventClock(const core::Clock& clock, cudaStream_t stream) : clock_(clock), stream_(stream) {
    must(cudaEventCreate(&known_), "cudaEventCreate");
    set();
  }
  ~EventClock() { cudaEventDestroy(known_); }

  std::optional<int64_t> time_ns(cudaEvent_t event) {
    constexpr int64_t kLongestNs = 10'000'000'000;
    const std::lock_guard lock(mutex_);
    if (clock_.now_ns() - known_ns_ > kLongestNs) set();
    float ms = 0;
    if (cudaEventElapsedTime(&ms, known_, event) != cudaSuccess) return std::nullopt;
    return known_ns_ + static_cast<int64_t>(static_cast<double>(ms) * 1e6);
  }

 private:
  void set() {
    must(cudaEventRecord(known_, stream_), "cudaEventRecord");
    must(cudaEventSynchronize(known_), "cudaEventSynchronize");
    known_ns_ = clock_.now_ns();
  }

  const core::Clock& clock_;
  cudaStream_t stream_;  // carries nothing else
  std::mutex mutex_;
  cudaEvent_t known_ = nullptr;
  int64_t known_ns_ = 0;
};

// Each point uses an event of a ring, which is recorded again and again. A point whose event was recorded anew
// counts as passed once the newer one has passed. (The source is public so that queues recognize each other's
// fences.)
class CudaQueue final : public compress::DeviceQueue, public core::Fence::Source {
 public:
  // Takes ownership of `stream` if `is_own` is set.
  CudaQueue(cudaStream_t stream, bool is_own, const CudaDeviceOptions& options, EventClock& clock)
      : stream_(stream),
        is_own_(is_own),
        device_(options.device),
        times_every_(static_cast<uint64_t>(options.times_every)),
        clock_(clock) {
    for (uint64_t i = 0; i < kEvents; ++i) {
      must(cudaEventCreateWithFlags(&events_[i], is_timed(i) ? cudaEventDefault : cudaEventDisableTiming),
           "cudaEventCreateWithFlags");
    }
  }
  ~CudaQueue() override {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
    if (is_own_) cudaStreamDestroy(stream_);
  }

  void* stream() const override { return stream_; }
  int device() const override { return device_; }

  core::Status after(const core::Fence& fence, int64_t timeout_ms) override {
    if (fence.empty()) return {};
    const auto* const other = dynamic_cast<const CudaQueue*>(fence.source());
    if (other == nullptr) return fence.wait(timeout_ms);
    if (other != this) must(cudaStreamWaitEvent(stream_, other->event_of(fence.point()), 0), "cudaStreamWaitEvent");
    return {};
  }

  core::Fence mark() override {
    const std::lock_guard lock(mutex_);
    must(cudaEventRecord(event_of(++last_), stream_), "cudaEventRecord");
    return {*this, last_};
  }

  void copy(void* to, const void* from, int64_t bytes) override {
    if (bytes == 0) return;
    must(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_), "cudaMemcpyAsync");
  }
  void fill(void* to, std::byte value, int64_t bytes) override {
    if (bytes == 0) return;
    must(cudaMemsetAsync(to, std::to_integer<int>(value), static_cast<size_t>(bytes), stream_), "cudaMemsetAsync");
  }

  void tell(EndListener& listener, uint64_t token) {
    auto told = std::make_unique<Told>(listener, token);
    must(cudaLaunchHostFunc(
             stream_,
             [](void* data) {
               const std::unique_ptr<Told> told(static_cast<Told*>(data));
               told->first.ended(told->second);
             },
             told.get()),
         "cudaLaunchHostFunc");
    static_cast<void>(told.release());
  }

 private:
  using Told = std::pair<EndListener&, uint64_t>;
  static constexpr uint64_t kEvents = 4096;  // more than a step queues on one stream

  bool is_timed(uint64_t point) const { return times_every_ > 0 && point % kEvents % times_every_ == 0; }
  cudaEvent_t event_of(uint64_t point) const { return events_[point % kEvents]; }

  // Work that failed has ended.
  bool passed(uint64_t point) const override { return cudaEventQuery(event_of(point)) != cudaErrorNotReady; }

  core::Status wait(uint64_t point, int64_t timeout_ms) const override {
    constexpr int kEager = 200;  // polls first, so as not to sleep through a fence that is about to pass
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
    for (int asked = 0;; ++asked) {
      const cudaError_t code = cudaEventQuery(event_of(point));
      if (code == cudaSuccess) return {};
      if (code != cudaErrorNotReady) return error_of(code, "work on a stream");
      if (std::chrono::steady_clock::now() >= deadline) {
        return core::Error{core::Error::Code::timeout,
                           "work on a stream did not end within " + std::to_string(timeout_ms) + " ms"};
      }
      asked < kEager ? std::this_thread::yield() : std::this_thread::sleep_for(std::chrono::microseconds(30));
    }
  }

  std::optional<int64_t> time_ns(uint64_t point) const override {
    {
      const std::lock_guard lock(mutex_);
      if (!is_timed(point) || last_ - point >= kEvents || !passed(point)) return std::nullopt;
    }
    return clock_.time_ns(event_of(point));
  }

  cudaStream_t stream_;
  const bool is_own_;
  const int device_;
  const uint64_t times_every_;
  EventClock& clock_;
  mutable std::mutex mutex_;  // of `last_`
  std::array<cudaEvent_t, kEvents> events_{};
  uint64_t last_ = 0;
};

cudaStream_t make_stream(int priority) {
  cudaStream_t stream = nullptr;
  must(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority), "cudaStreamCreateWithPriority");
  return stream;
}

// The priority of streams that others wait for: it is above that of the streams that compute.
int most_urgent() {
  int least = 0, most = 0;
  must(cudaDeviceGetStreamPriorityRange(&least, &most), "cudaDeviceGetStreamPriorityRange");
  return most;
}

class CudaDevice final : public Device {
 public:
  CudaDevice(const CudaDeviceOptions& options, const core::Clock& clock)
      : device_(options.device),
        kernels_(make_kernels(options.device).value()),
        memory_(options.device),
        clock_stream_(make_stream(0)),
        clock_(clock, clock_stream_),
        current_(static_cast<cudaStream_t>(options.current), /*is_own=*/false, options, clock_) {
    constexpr int kStreams = 4;  // Device::Stream
    for (int i = 0; i < kStreams; ++i) {
      queues_.push_back(std::make_unique<CudaQueue>(make_stream(most_urgent()), /*is_own=*/true, options, clock_));
    }
  }
  ~CudaDevice() override {
    for (const auto& queue : queues_) static_cast<void>(queue->mark().wait(core::kMostWaitMs));
    cudaStreamDestroy(clock_stream_);
  }

  void enter() override { must(cudaSetDevice(device_), "cudaSetDevice"); }
  Allocator& memory() override { return memory_; }
  Allocator& pinned() override { return pinned_; }
  compress::Queue& queue(Stream stream) override { return *queues_[static_cast<size_t>(stream)]; }
  compress::Queue& current() override { return current_; }
  void notify(compress::Queue& queue, EndListener& listener, uint64_t token) override {
    static_cast<CudaQueue&>(queue).tell(listener, token);
  }
  Kernels* kernels() override { return kernels_.get(); }

 private:
  const int device_;
  const std::unique_ptr<Kernels> kernels_;
  DeviceMemory memory_;
  PinnedMemory pinned_;
  cudaStream_t clock_stream_;
  EventClock clock_;
  CudaQueue current_;
  std::vector<std::unique_ptr<CudaQueue>> queues_;
};

}  // namespace

core::Result<std::unique_ptr<Device>> make_cuda_device(const CudaDeviceOptions& options, const core::Clock& clock) {
  int count = 0;
  cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess && options.device >= count) code = cudaErrorInvalidDevice;
  if (code != cudaSuccess) {
    return core::Error{core::Error::Code::invalid, "CUDA device " + std::to_string(options.device) +
                                                       " can not be used: " + cudaGetErrorString(code)};
  }
  try {
    const OnDevice here(options.device);
    return std::unique_ptr<Device>(std::make_unique<CudaDevice>(options, clock));
  } catch (const core::Exception& failed) {
    return core::Error{failed.code(), failed.what()};
  }
}

}  // namespace gradtune::exec::cuda
