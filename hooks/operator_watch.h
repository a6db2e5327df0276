// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tells which operators of LibTorch are about to use memory that is watched, on one thread, before their kernels run:
// a thread-local at::RecordFunction callback. C++ modules have no hooks of their own. It sees memory and not tensors,
// so views that were made earlier count as well. Leaves open what is done then.
//
// It does not see what no operator shows: torch::save of a module, data_ptr(), accessors, fused TorchScript kernels,
// and other threads. It costs 0.1 to 0.2 us an operator while it is armed, and nothing otherwise.
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
  // Called on the thread that armed the watch, between an operator's call and its kernel. What it calls of LibTorch is
  // not seen. It may disarm the watch.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void before_operator() noexcept = 0;
    // The operator takes a tensor in that memory, for reading or writing. Several tensors may share memory: once for
    // each of their numbers.
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
  // Instead of what was watched; only while it is not armed.
  void watch(std::vector<Watched> all);

  // Null where the tensor has no storage (undefined, sparse).
  static const void* memory_of(const torch::Tensor& tensor);

  // From now on, on the calling thread; a watch that was armed elsewhere ends there. What is armed in a backward pass
  // sees operators until that ends, and none afterwards.
  void arm();
  void disarm();
  bool is_armed() const { return armed_ != nullptr; }
  bool is_armed_here() const { return is_armed() && thread_ == std::this_thread::get_id(); }

  // What a thread's callback works with; it may outlive the watch by one operator.
  struct Armed {
    std::atomic<OperatorWatch*> watch;  // null: it was disarmed
  };

 private:
  friend struct WatchesOfThread;
  void saw(const torch::Tensor& tensor) const noexcept;

  Listener& listener_;
  std::vector<Watched> watched_;  // by memory
  std::shared_ptr<Armed> armed_;
  std::thread::id thread_;
};

}  // namespace gradtune
