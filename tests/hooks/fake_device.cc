// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/hooks/fake_device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pthread.h>
#include <sys/mman.h>
#include <torch/library.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/core/clock.h"
#include "engine/core/round_up.h"
#include "tests/engine/comm/fake_nccl.h"
#include "tests/hooks/fake_lstm.h"
#include "tests/hooks/fake_sparse.h"

namespace gradtune::test {
namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
const c10::Device kDevice(kType, 0);
constexpr auto kLimit = std::chrono::seconds(30);

// --- memory ----------------------------------------------------------------------------------------------------------

class Memory final : public c10::Allocator {
 public:
  Memory() {
    const int file = memfd_create("fake_device", 0);
    TORCH_CHECK(file >= 0 && ftruncate(file, kBytes) == 0);
    outside_ = map(file, PROT_NONE);
    inside_ = map(file, PROT_READ | PROT_WRITE);
    close(file);
  }

  c10::DataPtr allocate(size_t bytes) override {
    const size_t rounded = rounded_of(bytes);
    const std::lock_guard lock(mutex_);
    std::vector<std::byte*>& free = free_[rounded];
    std::byte* data = nullptr;
    if (!free.empty()) {
      data = free.back();
      free.pop_back();
    } else {
      TORCH_CHECK_WITH(OutOfMemoryError, used_ + rounded <= kBytes, "the fake device has no more memory");
      data = outside_ + used_;
      used_ += rounded;
    }
    sizes_[data] = rounded;
    return {data, data, &Memory::release, kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Memory::release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }

  bool freed_is_intact() {
    const std::lock_guard lock(mutex_);
    for (const auto& [bytes, blocks] : free_) {
      for (const std::byte* block : blocks) {
        const std::span<const std::byte> freed(reach(block), bytes);
        if (std::ranges::any_of(freed, [](std::byte byte) { return byte != kFreed; })) return false;
      }
    }
    return true;
  }

  // Null for memory that is not its own.
  std::byte* reach(const void* address) const {
    const auto* const data = static_cast<const std::byte*>(address);
    return data >= outside_ && data <= outside_ + kBytes ? inside_ + (data - outside_) : nullptr;
  }

 private:
  static constexpr size_t kBytes = size_t{1} << 30;
  static constexpr std::byte kFreed{0xff};  // NaN in all dtypes

  static size_t rounded_of(size_t bytes) {
    return static_cast<size_t>(core::round_up(static_cast<int64_t>(std::max<size_t>(bytes, 1)), 512));
  }
  static std::byte* map(int file, int access) {
    void* const data = mmap(nullptr, kBytes, access, MAP_SHARED | MAP_NORESERVE, file, 0);
    TORCH_CHECK(data != MAP_FAILED);
    return static_cast<std::byte*>(data);
  }
  static void release(void* data);

  std::byte *outside_ = nullptr, *inside_ = nullptr;
  std::mutex mutex_;
  size_t used_ = 0;
  std::map<void*, size_t> sizes_;
  std::map<size_t, std::vector<std::byte*>> free_;
};

class PinnedHost final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* const data = std::aligned_alloc(64, static_cast<size_t>(core::round_up(std::max<int64_t>(1, bytes), 64)));
    const std::lock_guard lock(mutex_);
    blocks_[static_cast<std::byte*>(data)] = bytes;
    return {data, data, &PinnedHost::release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &PinnedHost::release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}

  bool has(const void* address) const {
    const auto* const data = static_cast<const std::byte*>(address);
    const std::lock_guard lock(mutex_);
    auto next = blocks_.upper_bound(const_cast<std::byte*>(data));
    if (next == blocks_.begin()) return false;
    --next;
    return data < next->first + next->second;
  }

 private:
  static void release(void* data);

  mutable std::mutex mutex_;
  std::map<std::byte*, size_t> blocks_;
};

// --- streams ---------------------------------------------------------------------------------------------------------

class Event {
 public:
  void pass() {
    const std::lock_guard lock(mutex_);
    time_ns_ = core::SteadyClock().now_ns();
    changed_.notify_all();
  }
  void wait() const {
    std::unique_lock lock(mutex_);
    TORCH_CHECK(changed_.wait_for(lock, kLimit, [&] { return time_ns_.has_value(); }), "an event did not pass");
  }
  std::optional<int64_t> time_ns() const {
    const std::lock_guard lock(mutex_);
    return time_ns_;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::optional<int64_t> time_ns_;
};

// The fake NCCL of the tests takes it as a stream as well.
class Stream final : public comm::FakeNcclStream {
 public:
  Stream() : thread_([this] { work(); }) { thread_.detach(); }  // lives as long as the process

  std::byte* reach(const std::byte* address) override;
  void ask(std::function<void()> task) override {
    std::vector<std::function<void()>> ended;  // declared first, so that it ends outside of the lock
    const std::lock_guard lock(mutex_);
    ended.swap(ended_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }
  std::shared_ptr<Event> mark() {
    auto event = std::make_shared<Event>();
    ask([event] { event->pass(); });
    return event;
  }
  std::string name;
  std::atomic<int64_t> delay_us = 0;  // besides the delays of planted faults

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  // Tasks that were done. A later caller drops their tensors, because the end of a tensor of Python needs the
  // interpreter's lock, which a thread that waits for this stream may hold.
  std::vector<std::function<void()>> ended_;
  std::thread thread_;
};

// The whole device. It is never destroyed, as LibTorch and threads of streams use it to the end.
struct FakeDevice {
  Memory memory;
  PinnedHost pinned;
  std::mutex mutex;
  std::vector<std::unique_ptr<Stream>> streams;
  std::atomic<int64_t> stranger_calls = 0;
  int made = 0;  // number of named streams that the session made
  std::shared_ptr<const FakeDeviceFaults> planted = std::make_shared<const FakeDeviceFaults>();

  std::shared_ptr<const FakeDeviceFaults> faults() {
    const std::lock_guard lock(mutex);
    return planted;
  }
  Stream& stream(c10::StreamId id) {
    const std::lock_guard lock(mutex);
    return *streams[static_cast<size_t>(id)];
  }
};

FakeDevice& all() {
  static FakeDevice& device = *new FakeDevice;
  return device;
}

thread_local c10::StreamId current_stream = 0;
thread_local bool has_current_device = false;

void note_caller() {
  if (!has_current_device) ++all().stranger_calls;
}

Stream& current() { return all().stream(current_stream); }

void Memory::release(void* data) {
  Memory& memory = all().memory;
  const std::lock_guard lock(memory.mutex_);
  const auto found = memory.sizes_.find(data);
  std::memset(memory.reach(data), std::to_integer<int>(kFreed), found->second);
  memory.free_[found->second].push_back(static_cast<std::byte*>(data));
  memory.sizes_.erase(found);
}

void PinnedHost::release(void* data) {
  PinnedHost& pinned = all().pinned;
  {
    const std::lock_guard lock(pinned.mutex_);
    pinned.blocks_.erase(static_cast<std::byte*>(data));
  }
  std::free(data);
}

std::byte* reach_anywhere(const void* address) {
  if (std::byte* const data = all().memory.reach(address)) return data;
  TORCH_CHECK(all().pinned.has(address), "a stream of the fake device was given memory of the host that is not pinned");
  return static_cast<std::byte*>(const_cast<void*>(address));
}

std::byte* Stream::reach(const std::byte* address) { return reach_anywhere(address); }

void Stream::work() {
  pthread_setname_np(pthread_self(), "fake_stream");
  for (;;) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !tasks_.empty(); });
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    const auto faults = all().faults();
    const int64_t planted_us = faults->delay_us ? faults->delay_us(name) : 0;
    std::this_thread::sleep_for(std::chrono::microseconds(planted_us + delay_us));
    task();
    const std::lock_guard lock(mutex_);
    ended_.push_back(std::move(task));
  }
}

struct FakeEvent {
  std::shared_ptr<Event> event;
  std::string stream;
};

bool skips(const FakeEvent& event, const std::string& who) {
  const auto faults = all().faults();
  return faults->skips_wait && faults->skips_wait(event.stream, who);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device) const override { has_current_device = true; }
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Stream getStream(c10::Device) const override {
    return c10::Stream(c10::Stream::UNSAFE, kDevice, current_stream);
  }
  c10::Stream getDefaultStream(c10::Device) const override { return c10::Stream(c10::Stream::UNSAFE, kDevice, 0); }
  c10::Stream getNewStream(c10::Device, int) const override {
    static constexpr std::array kNames = {"clock", "codec", "to_host", "to_device", "collectives"};
    FakeDevice& device = all();
    const std::lock_guard lock(device.mutex);
    device.streams.push_back(std::make_unique<Stream>());
    device.streams.back()->name = kNames[static_cast<size_t>(device.made++) % kNames.size()];
    return c10::Stream(c10::Stream::UNSAFE, kDevice, static_cast<c10::StreamId>(device.streams.size()) - 1);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return c10::Stream(c10::Stream::UNSAFE, kDevice, std::exchange(current_stream, stream.id()));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return static_cast<comm::FakeNcclStream*>(&all().stream(stream.id()));
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    note_caller();
    if (*event == nullptr) *event = new FakeEvent;
    Stream& behind = all().stream(stream.id());
    *static_cast<FakeEvent*>(*event) = {behind.mark(), behind.name};
  }
  void block(void* event, const c10::Stream& stream) const override {
    const FakeEvent& from = *static_cast<FakeEvent*>(event);
    Stream& to = all().stream(stream.id());
    if (!skips(from, to.name)) to.ask([waits_for = from.event] { waits_for->wait(); });
  }
  bool queryEvent(void* event) const override {
    note_caller();
    const FakeEvent& from = *static_cast<FakeEvent*>(event);
    return from.event->time_ns().has_value() || skips(from, "host");
  }
  void synchronizeEvent(void* event) const override { static_cast<FakeEvent*>(event)->event->wait(); }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<FakeEvent*>(event);
  }
  double elapsedTime(void* from, void* to, const c10::DeviceIndex) const override {
    TORCH_CHECK(all().faults()->times_events, "events of this device have no times");
    const auto time = [](void* event) { return static_cast<FakeEvent*>(event)->event->time_ns().value_or(0); };
    return static_cast<double>(time(to) - time(from)) * 1e-6;
  }
  void synchronizeStream(const c10::Stream& stream) const override { all().stream(stream.id()).mark()->wait(); }
  void synchronizeDevice(const c10::DeviceIndex) const override { current().mark()->wait(); }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::Device getDeviceFromPtr(void*) const override { return kDevice; }
  bool isPinnedPtr(const void* data) const override { return all().pinned.has(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &all().pinned; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::DataPtr memory = bytes > 0 ? all().memory.allocate(bytes) : c10::DataPtr(nullptr, kDevice);
    std::byte* const to = memory ? all().memory.reach(memory.get()) : nullptr;
    const size_t kept = std::min(bytes, storage.nbytes());
    const auto old = std::make_shared<c10::DataPtr>(storage.unsafeGetStorageImpl()->set_data_ptr(std::move(memory)));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
    current().ask([old, to, kept] {  // the work so far may still use the old memory
      if (kept > 0) std::memcpy(to, all().memory.reach(old->get()), kept);
    });
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {  // seeded together with all others
    static const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>();
    return generator;
  }
};

// --- operators -------------------------------------------------------------------------------------------------------

// The same memory on the CPU, for the thread of a stream.
at::Tensor inside(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor.detach();
  if (tensor.numel() == 0) return at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()));
  std::byte* const data = all().memory.reach(tensor.const_data_ptr());
  TORCH_CHECK(data != nullptr, "a tensor of the fake device is not in its memory");
  return at::from_blob(data, tensor.sizes(), tensor.strides(), at::TensorOptions(tensor.scalar_type()));
}

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &all().memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(
      size, stride, &all().memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

// Copies from or to pinned memory later; unpinned memory is read before the call returns, as on a real device. Work
// keeps storages, and not tensors, because a tensor may get another storage meanwhile (`parameter.data = ...`).
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const auto is_later = [&](const at::Tensor& host) { return non_blocking && all().pinned.has(host.const_data_ptr()); };
  at::Tensor source = inside(from);
  if (from.is_cpu() && !is_later(from)) source = source.clone();
  current().ask([source, target = inside(to), kept = std::array{from.storage(), to.storage()}] {
    const c10::InferenceMode mode;
    target.copy_(source);
  });
  if (to.is_cpu() && !is_later(to)) current().mark()->wait();
  return to;
}

const at::Tensor& resize_to(const at::Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat>) {
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  const size_t bytes = at::detail::computeStorageNbytesContiguous(size, self.element_size(), self.storage_offset());
  const c10::Storage& storage = self.storage();
  if (bytes <= storage.nbytes()) return self;
  const auto old =
      std::make_shared<c10::DataPtr>(storage.unsafeGetStorageImpl()->set_data_ptr(all().memory.allocate(bytes)));
  storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  current().ask([old] {});  // the work so far may still use it
  return self;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (from.sizes() != to.sizes()) resize_to(to, from.sizes(), std::nullopt);
  return copy_from(from, to, /*non_blocking=*/false);
}

at::Tensor& fill(at::Tensor& self, const at::Scalar& value) {
  current().ask([kept = self.storage(), target = inside(self), value] {
    const c10::InferenceMode mode;
    at::Tensor(target).fill_(value);
  });
  return self;
}

at::Tensor& zero(at::Tensor& self) { return fill(self, 0); }

// A tensor that refers to a storage, as copies and pickles of tensors make them.
at::Tensor& set_storage(at::Tensor& self, at::Storage source) { return at::cpu::set_(self, std::move(source)); }
at::Tensor& set_part_of_storage(at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size,
                                c10::IntArrayRef stride) {
  return at::cpu::set_(self, std::move(source), offset, size, stride);
}

// The fallback below does not see convolutions, for which a device has operators of its own.
at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                       bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  const std::optional<at::Tensor> added = bias && bias->defined() ? std::optional(bias->cpu()) : std::nullopt;
  return at::convolution_symint(input.cpu(), weight.cpu(), added, stride, padding, dilation, transposed, output_padding,
                                std::move(groups))
      .to(input.device());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef output_padding,
    c10::SymInt groups, std::array<bool, 3> needed) {
  const std::vector<c10::SymInt> of_bias = {weight.sym_size(transposed ? 1 : 0) * (transposed ? groups : 1)};
  auto [of_input, of_weight, bias] =
      at::convolution_backward_symint(gradient.cpu(), input.cpu(), weight.cpu(), c10::SymIntArrayRef(of_bias), stride,
                                      padding, dilation, transposed, output_padding, groups, needed);
  const auto back = [&](const at::Tensor& tensor) { return tensor.defined() ? tensor.to(input.device()) : tensor; };
  return {back(of_input), back(of_weight), back(bias)};
}

void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("resize_", &resize_to);
  library.impl("fill_.Scalar", &fill);
  library.impl("zero_", &zero);
  library.impl("set_.source_Storage", &set_storage);
  library.impl("set_.source_Storage_storage_offset", &set_part_of_storage);
  library.impl("convolution_overrideable", &convolution);
  library.impl("convolution_backward_overrideable", &convolution_backward);
  library.impl("_thnn_fused_lstm_cell", &lstm_cell);
  library.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
}

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&sparse_on_cpu>());
}

// Autocast is part of a device. A few operators are enough for tests.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) { library.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1,
                   m){KERNEL_PRIVATEUSEONE(linear, lower_precision_fp) KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
                          KERNEL_PRIVATEUSEONE(mm, lower_precision_fp) KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)
                              KERNEL_PRIVATEUSEONE(cross_entropy_loss, fp32)}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
}

}  // namespace

c10::Device fake_device() {
  static const bool known = [] {
    FakeDevice& device = all();
    device.streams.push_back(std::make_unique<Stream>());
    device.streams.back()->name = "current";
    c10::register_privateuse1_backend("fake");
    c10::SetAllocator(kType, &device.memory);
    at::setHostAllocator(kType, &device.pinned);
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    static const c10::impl::DeviceGuardImplRegistrar registrar(kType, new Guard);
    return true;
  }();
  TORCH_CHECK(known);
  return kDevice;
}

void set_faults(FakeDeviceFaults faults) {
  FakeDevice& device = all();
  const std::lock_guard lock(device.mutex);
  device.planted = std::make_shared<const FakeDeviceFaults>(std::move(faults));
  device.made = 0;
}

bool freed_memory_is_intact() {
  FakeDevice& device = all();
  std::vector<std::shared_ptr<Event>> ends;
  {
    const std::lock_guard lock(device.mutex);
    for (const auto& stream : device.streams) ends.push_back(stream->mark());
  }
  for (const auto& end : ends) end->wait();
  return device.memory.freed_is_intact();
}

int64_t event_calls_of_strangers() { return all().stranger_calls; }

std::byte* reach_of_streams(const void* address) { return reach_anywhere(address); }

}  // namespace gradtune::test

// For programs that load this as a library (tests/python/devices.py). A stream delays each piece of its work.
extern "C" {
__attribute__((visibility("default"))) void gradtune_fake_device() { gradtune::test::fake_device(); }
__attribute__((visibility("default"))) void gradtune_fake_device_delay(int64_t stream, int64_t us) {
  gradtune::test::all().stream(stream).delay_us = us;
}
}
