// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Lets buckets that are due at the next forward pass travel until it needs them. Their parameters are *late*: step()
// fixes the options of their updates (learning rate, weight decay), and each update is done by the user's own optimizer
// just before an operator uses the parameter or its gradient. The bits are those of an update in step().
//
// What one rank decides here the others need not know: the collectives are the same either way.
//
// The watch is armed from one step() to the next while late buckets are in force or passes are observed. It would be
// enough until the last late parameter is updated, and again when backward has ended; but there it can not be armed.
//
// Never late is a parameter that forward was not seen to read, by an operator on this thread, in every observed pass;
// one whose gradient was sparse, or is the user's own; one that got other memory since the wrap, as may its gradient;
// and any in a step that is not finite or in which strategies change. A gradient that arrives while its parameter's
// update is still to come is an error: forward has read a stale weight where no operator shows it. A hidden read before
// one that an operator shows is not noticed.
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
  // All must outlive it.
  ForwardOverlap(bool is_wanted, Gradients& gradients, Stepper& stepper, exec::Executor& executor,
                 const core::Clock& clock, Warnings& warnings);

  // (Again) after the gradients were laid, while nothing is under way. Observes anew.
  void set_tensors();

  // All of the following on the thread that trains; errors are final.

  // A gradient was accumulated; before anything else is done with it.
  core::Status on_gradient(int32_t position);
  // The step is concluded. Waits for the late buckets that may not stay under way: for all of them unless `may_stay`.
  core::Status end_backward(bool may_stay);
  // Instead of the stepper's step(): late parameters are left for later. Throws what the stepper throws.
  core::Status update();
  // Does what is still to be done, now.
  core::Status finish();
  // For the rest of the job every late bucket is waited for at the end of backward. One line tells why, once.
  void turn_off(const std::string& why);

  bool is_under_way() const { return under_way_ > 0; }
  int64_t late_updates() const { return late_updates_; }  // so far, of parameters
  // A thread other than the caller's would have to notice what the forward pass reads.
  bool is_elsewhere() const { return watch_.is_armed() && !watch_.is_armed_here(); }
  // When all passes were observed, and when it was turned off after that: what is true then. Once each.
  std::optional<ForwardTimes> take_times() { return std::exchange(times_, std::nullopt); }

 private:
  enum class Mode : uint8_t { off, observe, overlap };
  enum class State : uint8_t {
    settled,
    averaging,  // between the end of backward and the update: its average may not be there yet
    pending,    // its update is still to come
  };

  struct Memory {
    const void *parameter, *gradient;
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
  void keep(core::Status status);  // the first error

  Gradients& gradients_;
  Stepper& stepper_;
  exec::Executor& executor_;
  const core::Clock& clock_;
  Warnings& warnings_;
  OperatorWatch watch_;
  Mode mode_ = Mode::off;
  core::Status status_;  // of what was done before an operator, where nothing can be thrown

  // By position.
  std::vector<State> states_;
  std::vector<uint8_t> may_be_late_;
  std::vector<Memory> memory_;                 // as watched
  std::vector<std::vector<int32_t>> buckets_;  // late ones that hold a part of it
  std::vector<int64_t> updated_in_;            // the pass of autograd within which it was updated too late; -1: none
  std::vector<uint8_t> stays_;                 // by bucket, in the step under way: it may stay under way
  int32_t under_way_ = 0;                      // not settled
  int64_t late_updates_ = 0;
  bool is_between_ = false;  // the end of backward and the update

  // What the optimizer steps; positions of -1 have no gradient that travels.
  std::vector<torch::Tensor> stepped_, early_;
  std::vector<int32_t> stepped_positions_;

  // Of step().
  uint64_t graphs_before_ = 0, stepped_by_ = 0;  // nodes that were recorded before have lower numbers; its thread
  std::unique_ptr<const Stepper::GroupOptions> options_;
  c10::impl::LocalDispatchKeySet dispatch_keys_;
  c10::AutogradState autograd_;

  ForwardObservation observation_;
  std::optional<ForwardTimes> times_;
};

}  // namespace gradtune
