// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Lets buckets that are due at the next forward pass stay in flight until the pass needs them. Their parameters are
// *late*: step() fixes the options of their updates (learning rate, weight decay), and the user's own optimizer does
// each update just before an operator uses the parameter or its gradient. The result is bit-identical to an update
// in step().
//
// Other ranks need not know about this rank's decisions, because the collectives do not depend on them.
//
// The watch is armed from one step() to the next while late buckets are in force or passes are observed. Two shorter
// periods would be enough: until the last late parameter is updated, and after the end of backward. But the watch
// cannot be armed at the end of backward.
//
// A parameter is never late if
// - some observed pass did not show an operator on this thread that reads it in forward;
// - its gradient was sparse, or is the user's own tensor;
// - its memory, or that of its gradient, has changed since the wrap;
// - the step is not finite, or strategies change in it.
//
// A gradient that arrives before its parameter's late update is an error: forward has read a stale weight by a way
// that no operator shows. A hidden read that precedes a visible one is not detected.
#pragma once

#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/clock.h"
#include "engine/exec/executor.h"
#include "hooks/forward_observation.h"
#include "hooks/gradients.h"
#include "hooks/operator_watch.h"
#include "hooks/stepper.h"
#include "hooks/warnings.h"

namespace gradtune {

class ForwardOverlap final : private OperatorWatch::Listener {
 public:
  // All references must outlive this object.
  ForwardOverlap(bool is_wanted, Gradients& gradients, Stepper& stepper, exec::Executor& executor,
                 const core::Clock& clock, Warnings& warnings);

  // Called after the gradients were laid out, also again, while nothing is in flight. Starts observation anew.
  void set_tensors();

  // All of the following are called on the training thread. Errors are final.

  // A gradient was accumulated. Called before any other use of it.
  core::Status on_gradient(int32_t position);
  // The step's result is settled. Waits for the late buckets that may not stay in flight: for all of them unless
  // `may_stay`.
  core::Status end_backward(bool may_stay);
  // Replaces the stepper's step(): late parameters are updated later. Throws the stepper's exceptions.
  core::Status update();
  // Does all pending updates now.
  core::Status finish();
  // From now on waits for every late bucket at the end of backward. Prints one line with the reason, once.
  void turn_off(const std::string& why);

  bool is_under_way() const { return under_way_ > 0; }
  int64_t late_updates() const { return late_updates_; }  // late updates of parameters so far
  // True if the watch is armed on another thread, so that this thread's reads would not be seen.
  bool is_elsewhere() const { return watch_.is_armed() && !watch_.is_armed_here(); }
  // The times, once each: when all passes were observed, and when the overlap was turned off after that.
  std::optional<tuner::ForwardTimes> take_times() { return std::exchange(times_, std::nullopt); }

 private:
  enum class Mode : uint8_t { off, observe, overlap };
  enum class State : uint8_t {
    settled,
    averaging,  // between the end of backward and the update: its average may not have arrived
    pending,    // its update is pending
  };

  struct Memory {
    const void *parameter = nullptr, *gradient = nullptr;
    bool operator==(const Memory&) const = default;
  };

  void before_operator() noexcept override;
  void before_use(int32_t number) noexcept override;

  Memory memory_at(size_t position) const;
  bool is_of_kept_graph(size_t position) const;
  bool has_late_buckets() const;
  void find_late();
  core::Status await_rest();
  core::Status await_buckets(size_t position);
  // `is_read`: an operator is about to read the parameter.
  core::Status update_late(size_t position, bool is_read);
  void settle(size_t position);
  void update_early();
  void keep(core::Status status);  // keeps the first error

  Gradients& gradients_;
  Stepper& stepper_;
  exec::Executor& executor_;
  const core::Clock& clock_;
  Warnings& warnings_;
  OperatorWatch watch_;
  Mode mode_ = Mode::off;
  core::Status status_;  // of work done before an operator, where nothing can be thrown

  // A gradient's parameter.
  struct Parameter {
    State state = State::settled;
    bool may_be_late = false;
    Memory memory = {};                 // as watched
    std::vector<int32_t> buckets = {};  // the late buckets that hold a part of it
    int64_t updated_in = -1;            // the autograd pass in which it was updated too late; -1: none
  };
  std::vector<Parameter> parameters_;  // by position
  std::vector<uint8_t> stays_;         // by bucket, in the current step: it may stay in flight
  int32_t under_way_ = 0;              // number of late parameters that are not settled
  int64_t late_updates_ = 0;
  bool is_between_ = false;  // true between the end of backward and the update

  // The parameters that the optimizer steps; a position of -1 means that the gradient is not communicated.
  std::vector<torch::Tensor> stepped_, early_;
  std::vector<int32_t> stepped_positions_;

  // The state at the last step(), in which late updates are made.
  struct AtStep {
    uint64_t graphs_before = 0;  // earlier nodes of autograd have lower sequence numbers
    uint64_t thread = 0;
    std::unique_ptr<const Stepper::GroupOptions> options = {};
    c10::impl::LocalDispatchKeySet dispatch_keys = c10::impl::tls_local_dispatch_key_set();
    c10::AutogradState autograd = c10::AutogradState::get_tls_state();
  };
  AtStep at_step_;

  ForwardObservation observation_;
  std::optional<tuner::ForwardTimes> times_;
};

}  // namespace gradtune
