// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The state of a rank within its step: which gradients of the current backward pass are ready, and whether those of
// the previous pass were averaged. Plain data, used by the training thread. It allocates when the tensors are set,
// and never in a step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace gradtune {

class BackwardPass {
 public:
  enum class State : uint8_t {
    none,      // nothing was averaged since the last step()
    running,   // some gradient is ready, and the pass has not ended yet
    averaged,  // the gradients are averages, until step() or zero_grad()
  };

  // Starts anew with this number of tensors.
  void set_tensors(size_t tensors) {
    ready_.assign(tensors, 0);
    order_.clear();
    order_.reserve(tensors);
    state_ = State::none;
  }

  State state() const { return state_; }
  bool is_running() const { return state_ == State::running; }

  void begin() {
    std::fill(ready_.begin(), ready_.end(), 0);
    order_.clear();
    state_ = State::running;
  }
  // Returns true if it is the first time in this pass.
  bool ready(int32_t tensor) {
    uint8_t& is_ready = ready_[static_cast<size_t>(tensor)];
    if (is_ready != 0) return false;
    is_ready = 1;
    order_.push_back(tensor);
    return true;
  }
  void end() { state_ = State::averaged; }
  void forget() { state_ = State::none; }

  bool is_ready(size_t tensor) const { return ready_[tensor] != 0; }
  bool is_whole() const { return order_.size() == ready_.size(); }
  std::span<const int32_t> order() const { return order_; }

 private:
  State state_ = State::none;
  std::vector<uint8_t> ready_;
  std::vector<int32_t> order_;  // of the gradients that are ready
};

}  // namespace gradtune
