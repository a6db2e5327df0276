// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/simulated_executor.h"

#include <algorithm>
#include <utility>

namespace gradtune::sim {

using exec::Action;
using exec::Op;
using exec::Piece;

SimulatedExecutor::SimulatedExecutor(World& world, comm::Communicator& data, comm::Communicator& control,
                                     const exec::GradientArenas& gradients, const ExecutorModel& model,
                                     ControlWord control_word)
    : world_(world),
      data_(data),
      control_(control),
      gradients_(gradients),
      model_(model),
      control_word_(std::move(control_word)),
      rank_(data.rank()),
      workspace_({.rank = rank_, .size = data.size()}, /*seed=*/0),
      device_(world, rank_, [this] { next_tensor(); }),
      host_(world, rank_, [] {}) {
  workspace_.set_gradients(gradients.table(), gradients.arenas());
}

core::Status SimulatedExecutor::prepare(int32_t slot, const core::Strategy& strategy) {
  settle();
  auto compiled = workspace_.compile(slot, strategy);
  if (!compiled) return compiled.error();
  return workspace_.add(slot, std::move(compiled.value()), INT64_MAX);
}

core::Result<bool> SimulatedExecutor::conclude(bool finite) {
  is_concluded_ = true;
  return workspace_.conclude(finite, *queue_);
}

void SimulatedExecutor::settle() {
  core::check(is_finished_, "late buckets are drained first");
  if (!is_concluded_) return;
  for (size_t b = 0; b < is_late_done_.size(); ++b) {
    if (is_late_done_[b]) core::check(workspace_.conclude_late(static_cast<int32_t>(b), *queue_).ok(), "late buckets");
  }
  is_concluded_ = false;
  workspace_.settle();
}

void SimulatedExecutor::await(int32_t bucket, Done done) {
  core::check(!wait_, "there is one thread that waits");
  wait_ = {bucket, std::move(done)};
  go_on_waiting();
}

void SimulatedExecutor::drain(Done done) { await(-1, std::move(done)); }

// Ends the wait if its event has come.
void SimulatedExecutor::go_on_waiting() {
  if (!wait_) return;
  core::Status status;
  if (failure_) {
    status = *failure_;
  } else if (wait_->bucket >= 0 && !is_finished_) {
    if (!is_late_done_[static_cast<size_t>(wait_->bucket)]) return;
    status = workspace_.conclude_late(wait_->bucket, *queue_);
  } else if (!is_finished_) {
    return;
  } else {
    settle();
  }
  const Done done = std::exchange(wait_, std::nullopt)->done;
  done(status);
}

// --- the thread that runs backward -----------------------------------------------------------------------------------

void SimulatedExecutor::backward(double pace, Done done) {
  pace_ = pace;
  done_ = std::move(done);
  next_tensor_ = 0;
  waiting_since_ns_.reset();
  late_ops_ms_ = 0;
  times_ = {};
  ready_.clear();
  settle();
  workspace_.begin();
  finite_ = true;
  is_finished_ = false;
  is_late_done_.assign(workspace_.program()->buckets.size(), false);
  scheduler_.begin(*workspace_.program());
  std::vector<Action> actions;
  scheduler_.start(actions);
  act(std::move(actions));
  device_.go_on();
}

// Waiting operations precede the rest of backward, as they run in its hooks.
void SimulatedExecutor::next_tensor() {
  const std::vector<core::TensorInfo>& tensors = gradients_.table().tensors;
  if (next_tensor_ == static_cast<int32_t>(tensors.size())) {
    if (!waiting_since_ns_) waiting_since_ns_ = world_.now_ns();
    return;
  }
  const int32_t tensor = next_tensor_++;
  const double share = static_cast<double>(tensors[static_cast<size_t>(tensor)].numel) /
                       static_cast<double>(std::max<int64_t>(gradients_.table().numel(), 1));
  device_.add(static_cast<int64_t>(pace_ * share * static_cast<double>(model_.backward_ns)), [this, tensor] {
    saw_ready(tensor);
    tensor_ready(tensor, 0);
  });
}

void SimulatedExecutor::saw_ready(int32_t tensor) {
  const double us = static_cast<double>(world_.now_ns()) * 1e-3 - (times_.encode_ms + times_.decode_ms) * 1e3;
  ready_.push_back({tensor, us});
}

std::vector<tuner::ReadyTime> SimulatedExecutor::ready_times() const {
  std::vector<tuner::ReadyTime> times = ready_;
  for (tuner::ReadyTime& time : times) time.us -= ready_.front().us;
  return times;
}

// One bucket after the other; the core is told of each when its leading operations are done.
void SimulatedExecutor::tensor_ready(int32_t tensor, size_t first_piece) {
  const std::vector<Piece>& pieces = workspace_.pieces(tensor);
  for (size_t i = first_piece; i < pieces.size(); ++i) {
    const int32_t bucket = pieces[i].bucket;
    if (!workspace_.arrived(tensor, pieces[i], {}, *queue_)) continue;
    const int32_t leading = exec::leading_device_ops(workspace_.bucket(bucket));
    int64_t work_ns = 0;
    for (int32_t op = 0; op < leading; ++op) work_ns += cost_ns(bucket, op);
    device_.add_first(work_ns, [this, tensor, bucket, leading, next = i + 1] {
      for (int32_t op = 0; op < leading; ++op) compute(bucket, op);
      std::vector<Action> actions;
      scheduler_.bucket_ready(bucket, leading, actions);
      act(std::move(actions));
      tensor_ready(tensor, next);
    });
    return;
  }
}

// --- what the core asks for ------------------------------------------------------------------------------------------

void SimulatedExecutor::act(std::vector<Action> actions) {
  for (const Action& action : actions) {
    const auto run = [this, bucket = action.bucket, op = action.op] {
      compute(bucket, op);
      std::vector<Action> next;
      scheduler_.op_done(bucket, op, next);
      act(std::move(next));
    };
    switch (action.kind) {
      case Action::Kind::start:
        data_.start(workspace_.collective(action.bucket, action.op, model_.timeout_ms), *this,
                    exec::token_of(action.bucket, action.op));
        break;
      case Action::Kind::control:
        control_.start(workspace_.control(control_word_(finite_), model_.timeout_ms), *this, exec::kControlToken);
        break;
      case Action::Kind::run_device: device_.add(cost_ns(action.bucket, action.op), run); break;
      case Action::Kind::run_host: host_.add(cost_ns(action.bucket, action.op), run); break;
      case Action::Kind::late_done:
        is_late_done_[static_cast<size_t>(action.bucket)] = true;
        go_on_waiting();
        break;
      case Action::Kind::backward_done: finish({}); break;
      case Action::Kind::finished:
        is_finished_ = true;
        go_on_waiting();
        break;
    }
  }
}

void SimulatedExecutor::compute(int32_t bucket, int32_t op) {
  workspace_.compute(bucket, op, *queue_);
  finite_ = finite_ && workspace_.verdict(bucket, op).nonfinite == 0;
  const Op& what = workspace_.op(bucket, op);
  if (what.place == core::Place::host) return;
  const bool decodes = what.is<exec::Decode>() || what.is<exec::Store>();
  const double ms = static_cast<double>(world_.work_ns(rank_, cost_ns(bucket, op))) * 1e-6;
  (decodes ? times_.decode_ms : times_.encode_ms) += ms;
  if (waiting_since_ns_) late_ops_ms_ += ms;
}

int64_t SimulatedExecutor::cost_ns(int32_t bucket, int32_t op) const {
  const Op& what = workspace_.op(bucket, op);
  const Cost& cost = what.place == core::Place::device ? model_.device : model_.host;
  const exec::Coding* const coding = exec::coding_of(what);
  int64_t elements = coding != nullptr || what.is<exec::Pack>() ? 0 : workspace_.bucket(bucket).numel;
  if (coding != nullptr) {
    for (const exec::Payload& payload : coding->payloads) elements += payload.range.length;
  }
  return cost.fixed_ns + static_cast<int64_t>(cost.element_ns * static_cast<double>(elements));
}

// --- completions -----------------------------------------------------------------------------------------------------

// A sink must not start collectives, so the next action is an event of its own.
void SimulatedExecutor::complete(uint64_t token, core::Status status, core::Fence) {
  world_.after(0, rank_, [this, token, status = std::move(status)] { completed(token, status); });
}

void SimulatedExecutor::completed(uint64_t token, const core::Status& status) {
  if (failure_) return;
  if (!status) {
    for (Lane* lane : {&device_, &host_}) lane->stop();
    for (comm::Communicator* each : {&data_, &control_}) each->abort();
    failure_ = exec::named(token, status.error());
    return done_ ? finish(*failure_) : go_on_waiting();
  }
  if (token == exec::kControlToken) workspace_.control_done();
  std::vector<Action> actions;
  token == exec::kControlToken ? scheduler_.control_done(actions)
                               : scheduler_.op_done(exec::bucket_of(token), exec::op_of(token), actions);
  act(std::move(actions));
}

void SimulatedExecutor::finish(core::Status status) {
  if (waiting_since_ns_)
    times_.wait_ms = static_cast<double>(world_.now_ns() - *waiting_since_ns_) * 1e-6 - late_ops_ms_;
  world_.after(0, rank_, [done = std::exchange(done_, nullptr), status = std::move(status)] { done(status); });
}

}  // namespace gradtune::sim
