// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Reports which LibTorch operators are about to use watched memory, on one thread, before their kernels run. It is a
// thread-local at::RecordFunction callback, because C++ modules have no hooks of their own. It compares memory, not
// tensors, so views that were made earlier count as well. The listener decides what to do.
//
// It cannot see reads that bypass operators: torch::save of a module, data_ptr(), accessors, fused TorchScript
// kernels, and other threads. It costs 0.1 to 0.2 us for each operator while it is armed, and nothing otherwise.
#pragma once

#include <torch/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace gradtune {

class OperatorWatch {
 public:
  // Called on the thread that armed the watch, between an operator's call and its kernel. LibTorch operators that
  // the listener calls are not reported. It may disarm the watch.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void before_operator() noexcept = 0;
    // The operator takes a tensor in that memory, for reading or writing. If several watched tensors share memory,
    // it is called once for each of their numbers.
    virtual void before_use(int32_t number) noexcept = 0;
  };

  explicit OperatorWatch(Listener& listener) : listener_(listener) {}
  ~OperatorWatch() { disarm(); }
  OperatorWatch(const OperatorWatch&) = delete;
  OperatorWatch& operator=(const OperatorWatch&) = delete;

  struct Watched {
    const void* memory;  // the storage of a tensor, see memory_of
    int32_t number;
  };
  // Replaces the watched memory; allowed only while the watch is not armed.
  void watch(std::vector<Watched> all);

  // Null if the tensor has no storage (undefined, sparse).
  static const void* memory_of(const torch::Tensor& tensor);

  // Arms the watch on the calling thread; a watch that was armed on another thread ends there. A watch that is armed
  // in a backward pass sees operators until that pass ends, and none afterwards.
  void arm();
  void disarm();
  bool is_armed() const { return armed_ != nullptr; }
  bool is_armed_here() const { return is_armed() && thread_ == std::this_thread::get_id(); }

  // The data of a thread's callback; it may outlive the watch by one operator.
  struct Armed {
    std::atomic<OperatorWatch*> watch;  // null: disarmed
  };

 private:
  friend struct WatchesOfThread;
  void saw(const torch::Tensor& tensor) const noexcept;

  Listener& listener_;
  std::vector<Watched> watched_;  // sorted by memory
  std::shared_ptr<Armed> armed_;
  std::thread::id thread_;
};

}  // namespace gradtune
