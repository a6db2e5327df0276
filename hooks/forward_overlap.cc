// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/forward_overlap.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "hooks/c10d/errors.h"

namespace gradtune {
namespace {

// The numbers under which memory is watched.
int32_t number_of_parameter(size_t position) { return 2 * static_cast<int32_t>(position); }
int32_t number_of_gradient(size_t position) { return 2 * static_cast<int32_t>(position) + 1; }

bool is_in_backward() { return torch::autograd::get_current_graph_task_id() >= 0; }

// Restores the thread-local state of step() for an update. The update may run in the middle of the user's forward
// pass: under no_grad, inference mode or autocast, or inside an autograd kernel.
class AsInStep {
 public:
  AsInStep(const c10::impl::LocalDispatchKeySet& keys, const c10::AutogradState& autograd)
      : keys_(keys), before_(c10::AutogradState::get_tls_state()) {
    c10::AutogradState::set_tls_state(autograd);
  }
  AsInStep(const AsInStep&) = delete;
  AsInStep& operator=(const AsInStep&) = delete;
  ~AsInStep() { c10::AutogradState::set_tls_state(before_); }

 private:
  const at::DisableRecordFunctionGuard unseen_;
  const c10::impl::ForceDispatchKeyGuard keys_;
  const c10::AutogradState before_;
};

}  // namespace

ForwardOverlap::ForwardOverlap(bool is_wanted, Gradients& gradients, Stepper& stepper, exec::Executor& executor,
                               const core::Clock& clock, Warnings& warnings)
    : gradients_(gradients), stepper_(stepper), executor_(executor), clock_(clock), warnings_(warnings), watch_(*this) {
  if (is_wanted) mode_ = Mode::observe;
}

void ForwardOverlap::set_tensors() {
  watch_.disarm();
  const size_t tensors = gradients_.table().tensors.size();
  parameters_.assign(tensors, {});
  under_way_ = 0;
  is_between_ = false;
  if (mode_ == Mode::off) return;
  mode_ = Mode::observe;
  observation_.set_tensors(tensors);
  std::vector<OperatorWatch::Watched> watched;
  std::unordered_map<const void*, int32_t> positions;
  for (size_t p = 0; p < tensors; ++p) {
    const torch::Tensor& parameter = gradients_.parameter(static_cast<int32_t>(p));
    const Memory memory = memory_at(p);
    parameters_[p].memory = memory;
    watched.push_back({memory.parameter, number_of_parameter(p)});
    watched.push_back({memory.gradient, number_of_gradient(p)});
    positions[parameter.unsafeGetTensorImpl()] = static_cast<int32_t>(p);
  }
  watch_.watch(std::move(watched));
  stepped_.clear();
  stepped_positions_.clear();
  for (const Stepper::Group& group : stepper_.groups()) {
    for (const torch::Tensor& parameter : group.parameters) {
      const auto found = positions.find(parameter.unsafeGetTensorImpl());
      stepped_.push_back(parameter);
      stepped_positions_.push_back(found == positions.end() ? -1 : found->second);
    }
  }
  early_.reserve(stepped_.size());
}

void ForwardOverlap::keep(core::Status status) {
  if (status_ && !status) status_ = std::move(status);
}

core::Status ForwardOverlap::on_gradient(int32_t position) {
  if (!status_ || (mode_ == Mode::off && !is_under_way())) return status_;
  const auto p = static_cast<size_t>(position);
  const bool is_in_time =
      parameters_[p].updated_in < 0 || parameters_[p].updated_in != torch::autograd::get_current_graph_task_id();
  if (is_in_time && (parameters_[p].state != State::pending || is_of_kept_graph(p))) return status_;
  keep(core::Error{
      core::Error::Code::invalid,
      "the forward pass read parameter " + gradients_.table().tensors[p].name +
          " before its update of the last step was done: where no operator shows it (TorchScript, data_ptr(), an "
          "accessor), or on another thread. Its gradient is of a stale weight. Call synchronize() before such reads, "
          "or set forward_overlap to false"});
  return status_;
}

// True if the node that gives the parameter's gradient in the current pass was recorded before the last step(). Then
// the forward pass read the parameter in time, and the graph was kept for another pass.
bool ForwardOverlap::is_of_kept_graph(size_t position) const {
  const auto accumulator =
      torch::autograd::impl::try_get_grad_accumulator(gradients_.parameter(static_cast<int32_t>(position)));
  const auto* const nodes = is_in_backward() ? torch::autograd::get_current_graph_task_nodes_in_graph() : nullptr;
  if (!accumulator || nodes == nullptr) return false;
  return std::ranges::all_of(*nodes, [&](const torch::autograd::Node* node) {
    const bool is_after = node->thread_id() != at_step_.thread || node->sequence_nr() >= at_step_.graphs_before;
    return !is_after || std::ranges::none_of(node->next_edges(), [&](const torch::autograd::Edge& edge) {
      return edge.function == accumulator;
    });
  });
}

// --- the end of backward ---------------------------------------------------------------------------------------------

core::Status ForwardOverlap::end_backward(bool may_stay) {
  if (!status_) return status_;
  if (mode_ == Mode::observe && observation_.end_pass()) {
    mode_ = Mode::overlap;
    times_ = observation_.times();
    for (size_t p = 0; p < parameters_.size(); ++p) {
      double& read_us = times_->read_us[p];
      if (gradients_.was_sparse(static_cast<int32_t>(p))) read_us = -1;
      parameters_[p].may_be_late = read_us >= 0;
    }
  }
  if (has_late_buckets()) {
    stays_.assign(executor_.strategy().buckets.size(), 0);
    // From here on gradients are watched, so the watch must have been armed before the backward pass
    // (operator_watch.h).
    if (mode_ == Mode::overlap && may_stay && watch_.is_armed_here()) find_late();
    keep(is_under_way() ? await_rest() : executor_.drain());
    if (!status_) return status_;
  }
  is_between_ = mode_ == Mode::observe || is_under_way();
  return status_;
}

ForwardOverlap::Memory ForwardOverlap::memory_at(size_t position) const {
  const auto p = static_cast<int32_t>(position);
  return {OperatorWatch::memory_of(gradients_.parameter(p)), OperatorWatch::memory_of(gradients_.slot(p))};
}

bool ForwardOverlap::has_late_buckets() const {
  return std::ranges::any_of(executor_.strategy().buckets,
                             [](const core::Bucket& bucket) { return bucket.due == core::Due::forward; });
}

// A bucket may stay in flight if every tensor that it holds a part of may be late. Other ranks may wait for it while
// this rank runs the user's code, which may in turn wait for those ranks.
void ForwardOverlap::find_late() {
  const auto may_be_late = [this](const core::Slice& slice) {
    const auto p = static_cast<size_t>(slice.tensor);
    return parameters_[p].may_be_late && !gradients_.was_sparse(slice.tensor) && gradients_.has_slot(slice.tensor) &&
           parameters_[p].memory == memory_at(p);
  };
  for (Parameter& parameter : parameters_) parameter.buckets.clear();
  const std::vector<core::Bucket>& all = executor_.strategy().buckets;
  for (size_t b = 0; b < all.size(); ++b) {
    if (all[b].due != core::Due::forward || !executor_.may_be_left(static_cast<int32_t>(b))) continue;
    if (!std::ranges::all_of(all[b].slices, may_be_late)) continue;
    stays_[b] = 1;
    for (const core::Slice& slice : all[b].slices) {
      const auto p = static_cast<size_t>(slice.tensor);
      parameters_[p].buckets.push_back(static_cast<int32_t>(b));
      if (parameters_[p].state == State::settled) ++under_way_;
      parameters_[p].state = State::averaging;
    }
  }
}

core::Status ForwardOverlap::await_rest() {
  const std::vector<core::Bucket>& all = executor_.strategy().buckets;
  for (size_t b = 0; b < all.size(); ++b) {
    if (all[b].due != core::Due::forward || stays_[b] != 0) continue;
    if (core::Status there = executor_.await(static_cast<int32_t>(b)); !there) return there;
  }
  return {};
}

core::Status ForwardOverlap::await_buckets(size_t position) {
  for (const int32_t bucket : parameters_[position].buckets) {
    if (core::Status there = executor_.await(bucket); !there) return there;
  }
  return {};
}

void ForwardOverlap::settle(size_t position) {
  parameters_[position].state = State::settled;
  if (--under_way_ == 0 && mode_ == Mode::off) watch_.disarm();
}

// --- updates ---------------------------------------------------------------------------------------------------------

core::Status ForwardOverlap::update() {
  // The status of the step before, if no backward pass followed it.
  if (core::Status finished = is_between_ ? status_ : finish(); !finished) return finished;
  is_between_ = false;
  if (is_under_way()) {
    update_early();
  } else {
    const int64_t began_ns = clock_.now_ns();
    stepper_.step();
    const int64_t now_ns = clock_.now_ns();
    if (mode_ == Mode::observe) observation_.begin(now_ns, now_ns - began_ns, gradients_.table().numel());
  }
  const bool has_late = mode_ == Mode::overlap && has_late_buckets();
  mode_ == Mode::observe || has_late || is_under_way() ? watch_.arm() : watch_.disarm();
  return status_;
}

void ForwardOverlap::update_early() {
  early_.clear();
  for (size_t i = 0; i < stepped_.size(); ++i) {
    const int32_t position = stepped_positions_[i];
    // The user may have replaced or removed the gradient.
    const bool is_late = position >= 0 && parameters_[static_cast<size_t>(position)].state == State::averaging;
    if (is_late && !gradients_.has_slot(position)) {
      keep(await_buckets(static_cast<size_t>(position)));
      if (!status_) return;
      settle(static_cast<size_t>(position));
    }
    if (!is_late || !gradients_.has_slot(position)) early_.push_back(stepped_[i]);
  }
  at_step_ = {.graphs_before = at::sequence_number::peek(),
              .thread = at::RecordFunction::currentThreadId(),
              .options = stepper_.options()};
  if (!early_.empty()) stepper_.step_part(early_, nullptr);
  for (size_t p = 0; p < parameters_.size(); ++p) {
    if (parameters_[p].state != State::averaging) continue;
    parameters_[p].state = State::pending;
    parameters_[p].updated_in = -1;
  }
}

// Gradients may have been dropped by zero_grad() or replaced by another tensor; the average is still in its slot.
core::Status ForwardOverlap::update_late(size_t position, bool is_read) {
  const auto p = static_cast<int32_t>(position);
  if (core::Status there = await_buckets(position); !there) return there;
  torch::Tensor parameter = gradients_.parameter(p);
  torch::Tensor before = std::exchange(parameter.mutable_grad(), gradients_.slot(p));
  core::Status status;
  try {
    const AsInStep as_in_step(at_step_.dispatch_keys, at_step_.autograd);
    stepper_.step_part({&parameter, 1}, at_step_.options.get());
  } catch (const std::exception& caught) {
    status = error_of(caught);
  }
  parameter.mutable_grad() = std::move(before);
  ++late_updates_;
  const bool is_in_time = !is_read && is_of_kept_graph(position);
  parameters_[position].updated_in = is_in_time ? -1 : torch::autograd::get_current_graph_task_id();
  return status;
}

core::Status ForwardOverlap::finish() {
  is_between_ = false;
  for (size_t p = 0; p < parameters_.size() && is_under_way(); ++p) {
    if (!status_) return status_;
    if (parameters_[p].state == State::settled) continue;
    keep(parameters_[p].state == State::pending ? update_late(p, /*is_read=*/false) : await_buckets(p));
    settle(p);
  }
  return status_;
}

void ForwardOverlap::turn_off(const std::string& why) {
  if (mode_ == Mode::off) return;
  warnings_.once(Warnings::Kind::no_overlap, "forward_overlap is off for this job: " + why);
  if (mode_ == Mode::overlap) times_ = tuner::ForwardTimes{.read_us = std::vector<double>(parameters_.size(), -1.0)};
  mode_ = Mode::off;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    if (parameters_[p].state != State::averaging) continue;
    keep(await_buckets(p));
    settle(p);
  }
  if (!is_under_way()) watch_.disarm();
}

// --- before operators ------------------------------------------------------------------------------------------------

void ForwardOverlap::before_operator() noexcept {
  if (mode_ == Mode::observe && observation_.is_in_forward() && is_in_backward()) {
    observation_.begin_backward(clock_.now_ns());
  }
}

void ForwardOverlap::before_use(int32_t number) noexcept {
  const auto position = static_cast<size_t>(number / 2);
  const bool is_gradient = number == number_of_gradient(position);
  if (parameters_[position].state == State::pending) {
    try {
      keep(update_late(position, !is_gradient));
    } catch (const std::exception& caught) {
      keep(error_of(caught));
    }
    settle(position);
    return;
  }
  if (is_gradient && is_between_) {
    turn_off(
        "the gradient of " + gradients_.table().tensors[position].name +
        " is used between backward() and step(), as clipping, loss scaling and gradient statistics do, and needs its "
        "average there");
  } else if (!is_gradient && mode_ == Mode::observe) {
    observation_.read(static_cast<int32_t>(position), clock_.now_ns());
  }
}

}  // namespace gradtune
