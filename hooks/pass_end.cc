// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/pass_end.h"

#include <torch/csrc/autograd/engine.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <utility>

namespace gradtune {

struct PassEnd::Shared {
  // The state of a callback that autograd destroyed on a thread that does not train.
  enum class Lost : uint8_t {
    none,
    postponed,  // to the end of the outer pass, which runs on another thread
    left,       // its pass was aborted
  };
  bool take(Lost what) { return lost.compare_exchange_strong(what, Lost::none); }

  explicit Shared(Calls of) : calls(std::move(of)) {}
  Calls calls;  // empty after the owner was destroyed
  const std::thread::id training_thread = std::this_thread::get_id();
  std::atomic<Lost> lost = Lost::none;
};

// Autograd calls it at the end of the backward pass that runs the hook, and destroys it in any case.
class PassEnd::Callback {
 public:
  explicit Callback(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  Callback(const Callback&) = delete;
  Callback& operator=(const Callback&) = delete;
  ~Callback() {
    if (state_ == State::ended) return;
    const bool is_inside = torch::autograd::get_current_graph_task_id() >= 0;  // the outer pass is current again
    if (state_ == State::postponed && is_inside) {
      if (shared_->calls.ended) queue(shared_);
    } else if (std::this_thread::get_id() != shared_->training_thread) {
      shared_->lost = state_ == State::postponed ? Shared::Lost::postponed : Shared::Lost::left;
    } else if (shared_->calls.left) {
      shared_->calls.left();
    }
  }

  void call() {
    state_ = State::ended;
    if (shared_->calls.ended && !shared_->calls.ended()) state_ = State::postponed;
  }

 private:
  const std::shared_ptr<Shared> shared_;
  enum class State : uint8_t { waiting, postponed, ended } state_ = State::waiting;
};

PassEnd::PassEnd(Calls calls) : shared_(std::make_shared<Shared>(std::move(calls))) {}

void PassEnd::stop() { shared_->calls = {}; }

void PassEnd::queue(const std::shared_ptr<Shared>& shared) {
  torch::autograd::Engine::get_default_engine().queue_callback(
      [callback = std::make_shared<Callback>(shared)] { callback->call(); });
}

void PassEnd::queue() { queue(shared_); }

void PassEnd::queue_postponed() {
  if (shared_->take(Shared::Lost::postponed)) queue(shared_);
}

bool PassEnd::was_left_elsewhere() { return shared_->take(Shared::Lost::left); }

}  // namespace gradtune
