// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/simulated_executor.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace gradtune::sim {
namespace {

using exec::Action;
using exec::BucketProgram;
using exec::Op;
using exec::Piece;
using exec::Program;

constexpr uint64_t kControlToken = ~uint64_t{0};

}  // namespace

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
      device_(world, rank_, [this] { next_tensor(); }),
      host_(world, rank_, [] {}) {}

// --- between steps -------------------------------------------------------------------------------------------------------

core::Status SimulatedExecutor::prepare(int32_t slot, const core::Strategy& strategy) {
  core::check(program_ == nullptr || find(slot) != program_, "the strategy in force can not be replaced");
  if (core::Status status = core::validate(strategy, gradients_.table()); !status) return status;
  auto compiled = exec::compile(strategy, gradients_.table(), rank_, data_.size());
  if (!compiled) return compiled.error();
  std::unique_ptr<Program> program = std::move(compiled.value());
  if (program->pool_bytes > pool_.bytes()) pool_ = exec::AlignedBytes(program->pool_bytes);
  if (program->keeps_residual) residuals_.allocate(gradients_.arenas());
  slots_[slot] = std::move(program);
  return {};
}

const Program* SimulatedExecutor::find(int32_t slot) const {
  const auto found = slots_.find(slot);
  return found == slots_.end() ? nullptr : found->second.get();
}

void SimulatedExecutor::drop(int32_t slot) {
  core::check(program_ == nullptr || find(slot) != program_, "the strategy in force can not be dropped");
  slots_.erase(slot);
}

void SimulatedExecutor::run(int32_t slot) {
  const Program* next = find(slot);
  core::check(next != nullptr, "a slot must be prepared before it is run");
  if (next == program_) return;
  if (program_ != nullptr) residuals_.leave(*program_);
  program_ = next;
  residuals_.enter(*program_);
}

core::Status SimulatedExecutor::settle(bool finite) {
  const std::optional<core::Error> undecodable = std::exchange(undecodable_, std::nullopt);
  if (finite) {
    if (undecodable) return *undecodable;
    residuals_.swap(*program_);
    return {};
  }
  for (size_t d = 0; d < gradients_.arenas().size(); ++d) {
    const auto& [data, numel] = gradients_.arenas()[d];
    // The same pattern of bits, all ones, is a NaN in every dtype.
    if (numel > 0) std::memset(data, 0xff, static_cast<size_t>(numel * core::bytes_per_element(static_cast<core::DType>(d))));
  }
  return {};
}

// --- the thread that runs backward ---------------------------------------------------------------------------------------

void SimulatedExecutor::backward(double pace, Done done) {
  pace_ = pace;
  done_ = std::move(done);
  next_tensor_ = 0;
  missing_tensors_.clear();
  for (const BucketProgram& bucket : program_->buckets) missing_tensors_.push_back(bucket.tensors);
  waiting_since_ns_.reset();
  late_ops_ms_ = 0;
  times_ = {};
  finite_ = true;
  core_.begin(*program_);
  std::vector<Action> actions;
  core_.start(actions);
  act(std::move(actions));
  device_.go_on();
}

// Operations that wait go before what is left of backward, as they run in its hooks.
void SimulatedExecutor::next_tensor() {
  const std::vector<core::TensorInfo>& tensors = gradients_.table().tensors;
  if (next_tensor_ == static_cast<int32_t>(tensors.size())) {
    if (!waiting_since_ns_) waiting_since_ns_ = world_.now_ns();
    return;
  }
  const int32_t tensor = next_tensor_++;
  const double share = static_cast<double>(tensors[static_cast<size_t>(tensor)].numel) /
                       static_cast<double>(std::max<int64_t>(gradients_.table().numel(), 1));
  device_.add(static_cast<int64_t>(pace_ * share * static_cast<double>(model_.backward_ns)),
              [this, tensor] { tensor_ready(tensor, 0); });
}

// One bucket after the other, each told to the core when its leading operations are done.
void SimulatedExecutor::tensor_ready(int32_t tensor, size_t first_bucket) {
  const std::vector<Piece>& pieces = program_->pieces_of_tensor[static_cast<size_t>(tensor)];
  for (size_t i = first_bucket; i < pieces.size(); ++i) {
    const int32_t bucket = pieces[i].bucket;
    if (--missing_tensors_[static_cast<size_t>(bucket)] > 0) continue;
    const int32_t leading = exec::leading_device_ops(program_->buckets[static_cast<size_t>(bucket)]);
    int64_t work_ns = 0;
    for (int32_t op = 0; op < leading; ++op) work_ns += cost_ns(bucket, op);
    device_.add_first(work_ns, [this, tensor, bucket, leading, next = i + 1] {
      for (int32_t op = 0; op < leading; ++op) compute(bucket, op);
      std::vector<Action> actions;
      core_.bucket_ready(bucket, leading, actions);
      act(std::move(actions));
      tensor_ready(tensor, next);
    });
    return;
  }
}

// --- what the core asks for ----------------------------------------------------------------------------------------------

void SimulatedExecutor::act(std::vector<Action> actions) {
  for (const Action& action : actions) {
    const auto run = [this, bucket = action.bucket, op = action.op] {
      compute(bucket, op);
      std::vector<Action> next;
      core_.op_done(bucket, op, next);
      act(std::move(next));
    };
    switch (action.kind) {
      case Action::Kind::start: start_collective(action.bucket, action.op); break;
      case Action::Kind::control: start_control(); break;
      case Action::Kind::run_device: device_.add(cost_ns(action.bucket, action.op), run); break;
      case Action::Kind::run_host: host_.add(cost_ns(action.bucket, action.op), run); break;
      case Action::Kind::finished: finish({}); break;
    }
  }
}

void SimulatedExecutor::start_collective(int32_t bucket, int32_t op) {
  const Op& what = program_->buckets[static_cast<size_t>(bucket)].ops[static_cast<size_t>(op)];
  const exec::BucketMemory memory = memory_of(bucket);
  data_.start({.kind = what.collective,
               .type = what.wire,
               .in = what.on_gradient ? memory.gradient : memory.pool + what.input,
               .out = what.on_gradient ? memory.gradient : memory.pool + what.output,
               .count = what.count,
               .timeout_ms = model_.timeout_ms},
              *this, static_cast<uint64_t>(bucket) << 32 | static_cast<uint64_t>(op));
}

void SimulatedExecutor::start_control() {
  const std::span<double> word = control_word_(finite_);
  control_.start({.kind = comm::Collective::Kind::all_reduce,
                  .reduction = comm::Collective::Reduction::max,
                  .type = comm::WireType::f64,
                  .out = reinterpret_cast<std::byte*>(word.data()),
                  .count = static_cast<int64_t>(word.size()),
                  .timeout_ms = model_.timeout_ms},
                 *this, kControlToken);
}

void SimulatedExecutor::compute(int32_t bucket, int32_t op) {
  const BucketProgram& program = program_->buckets[static_cast<size_t>(bucket)];
  const Op& what = program.ops[static_cast<size_t>(op)];
  const exec::ComputeResult result = exec::run_op(program, what, memory_of(bucket), *queue_);
  finite_ = finite_ && result.finite;
  if (!result.status) {
    undecodable_ = {result.status.error().code, "bucket " + std::to_string(bucket) + ": " + result.status.error().message};
  }
  if (what.place == core::Place::host) return;
  const bool decodes = what.kind == Op::Kind::decode || what.kind == Op::Kind::store;
  const double ms = static_cast<double>(world_.work_ns(rank_, cost_ns(bucket, op))) * 1e-6;
  (decodes ? times_.decode_ms : times_.encode_ms) += ms;
  if (waiting_since_ns_) late_ops_ms_ += ms;
}

int64_t SimulatedExecutor::cost_ns(int32_t bucket, int32_t op) const {
  const BucketProgram& program = program_->buckets[static_cast<size_t>(bucket)];
  const Op& what = program.ops[static_cast<size_t>(op)];
  const Cost& cost = what.place == core::Place::device ? model_.device : model_.host;
  int64_t elements = what.payloads.empty() ? program.numel : 0;
  for (const exec::Payload& payload : what.payloads) elements += payload.range.length;
  return cost.fixed_ns + static_cast<int64_t>(cost.element_ns * static_cast<double>(elements));
}

exec::BucketMemory SimulatedExecutor::memory_of(int32_t bucket) const {
  const auto index = static_cast<size_t>(bucket);
  const BucketProgram& program = program_->buckets[index];
  std::byte* arena = gradients_.arenas()[static_cast<size_t>(program.dtype)].data;
  return {.pool = pool_.data(),
          .gradient = arena + program.arena_begin * core::bytes_per_element(program.dtype),
          .residual = program.keeps_residual ? residuals_.current(program, index) : nullptr,
          .residual_next = program.keeps_residual ? residuals_.next(program, index) : nullptr,
          .size = data_.size()};
}

// --- completions ---------------------------------------------------------------------------------------------------------

// A sink must not start collectives, so what follows is an event of its own.
void SimulatedExecutor::complete(uint64_t token, core::Status status) {
  world_.after(0, rank_, [this, token, status = std::move(status)] { completed(token, status); });
}

void SimulatedExecutor::completed(uint64_t token, const core::Status& status) {
  if (!done_) return;  // the step has failed
  const auto bucket = static_cast<int32_t>(token >> 32);
  if (!status) {
    const bool is_control = token == kControlToken;
    const std::string what = is_control ? "the control collective" : "a collective of bucket " + std::to_string(bucket);
    for (Lane* lane : {&device_, &host_}) lane->stop();
    for (comm::Communicator* each : {&data_, &control_}) each->abort();
    return finish(core::Error{status.error().code, what + " failed: " + status.error().message});
  }
  std::vector<Action> actions;
  token == kControlToken ? core_.control_done(actions)
                         : core_.op_done(bucket, static_cast<int32_t>(token & 0xffffffffU), actions);
  act(std::move(actions));
}

void SimulatedExecutor::finish(core::Status status) {
  if (waiting_since_ns_) times_.wait_ms = static_cast<double>(world_.now_ns() - *waiting_since_ns_) * 1e-6 - late_ops_ms_;
  world_.after(0, rank_, [done = std::exchange(done_, nullptr), status = std::move(status)] { done(status); });
}

}  // namespace gradtune::sim
