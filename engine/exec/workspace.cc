// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/workspace.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <set>
#include <utility>

#include "engine/exec/nonfinite.h"

namespace gradtune::exec {
namespace {

bool same_elements(const core::GradientTable& a, const core::GradientTable& b) {
  return std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(),
                    [](const core::TensorInfo& x, const core::TensorInfo& y) {
                      return x.name == y.name && x.shape == y.shape && x.numel == y.numel && x.dtype == y.dtype;
                    });
}

}  // namespace

// --- between steps ---------------------------------------------------------------------------------------------------

void Workspace::set_gradients(const core::GradientTable& table, const Arenas& arenas) {
  if (program_ != nullptr) residuals_.leave(*program_);
  program_ = nullptr;
  is_committed_ = false;
  slots_.clear();
  if (!same_elements(table_, table)) {
    residuals_ = {};
    holders_ = {};
  }
  table_ = table;
  arenas_ = arenas;
}

core::Result<std::unique_ptr<Program>> Workspace::compile(int32_t slot, const core::Strategy& strategy) const {
  core::check(program_ == nullptr || find(slot) != program_, "the strategy in force can not be replaced");
  if (core::Status status = core::validate(strategy, table_); !status) return status.error();
  return exec::compile(strategy, table_, seat_);
}

core::Status Workspace::add(int32_t slot, std::unique_ptr<Program> program, int64_t memory_budget_bytes) {
  if (core::Status status = reserve(*program, memory_budget_bytes); !status) return status;
  slots_[slot] = std::move(program);
  return {};
}

core::Status Workspace::reserve(const Program& program, int64_t memory_budget_bytes) {
  int64_t residual_bytes = residuals_.bytes();
  if (program.keeps_residual && !residuals_.allocated()) {
    for (const Arena& arena : arenas_) residual_bytes += arena.numel * 8;
  }
  const bool has_others = needs_parked(program);
  if (has_others && !residuals_.has_parked()) {
    for (const Arena& arena : arenas_) residual_bytes += arena.numel * 4;
  }
  const int64_t pool_bytes = std::max(pool_.bytes(), program.pool_bytes);
  const int64_t state_bytes = std::max(states_.bytes(), 2 * program.state_bytes);
  const int64_t bytes = pool_bytes + residual_bytes + state_bytes;
  const std::string needs = "the strategy needs " + std::to_string(bytes) + " bytes of residual and payload memory, ";
  if (bytes > memory_budget_bytes) {
    return core::Error{core::Error::Code::invalid,
                       needs + "memory_budget allows " + std::to_string(memory_budget_bytes)};
  }
  try {
    // Zeros: page faults belong here, not into a measured step. Nothing is kept before all is there.
    AlignedBytes pool = AlignedBytes::zeros(pool_bytes > pool_.bytes() ? pool_bytes : 0);
    std::optional<States> states = states_.larger(program.state_bytes);
    residuals_.allocate(arenas_, {.own = program.keeps_residual, .parked = has_others});
    if (pool.bytes() > 0) pool_ = std::move(pool);
    if (states) states_ = std::move(*states);
  } catch (const std::bad_alloc&) {
    return core::Error{core::Error::Code::io, needs + "the system has not that much"};
  }
  return {};
}

// Whether residuals of another strategy's codecs may be there when this one takes its turn, or its own when another does.
bool Workspace::needs_parked(const Program& program) const {
  if (!program.keeps_residual) return false;
  std::set<std::string> codecs;
  const auto add = [&](const Program& each) {
    for (size_t b = 0; b < each.buckets.size(); ++b) {
      if (each.buckets[b].keeps_residual) codecs.insert(codecs_of(each.strategy.buckets[b].option));
    }
  };
  add(program);
  for (const auto& [slot, ready] : slots_) add(*ready);
  for (const std::vector<OwnedRange>& of_dtype : holders_) {
    for (const OwnedRange& held : of_dtype) codecs.insert(held.codecs);
  }
  return codecs.size() > 1;
}

const Program* Workspace::find(int32_t slot) const {
  const auto found = slots_.find(slot);
  return found == slots_.end() ? nullptr : found->second.get();
}

void Workspace::drop(int32_t slot) {
  core::check(program_ == nullptr || find(slot) != program_, "the strategy in force can not be dropped");
  slots_.erase(slot);
  free_idle_residuals();
}

void Workspace::run(int32_t slot) {
  const Program* next = find(slot);
  core::check(next != nullptr, "a slot must be prepared before it is run");
  is_committed_ = false;
  drains_.assign(next->buckets.size(), {});
  if (next == program_) return;
  if (program_ != nullptr) residuals_.leave(*program_);
  program_ = next;
  residuals_.enter(*program_);
  take_residuals();
  states_.clear();
  missing_tensors_.reserve(program_->buckets.size());
  samples_.reserve(program_->buckets.size());
}

void Workspace::commit(int32_t slot) {
  run(slot);
  is_committed_ = true;
  residuals_.leave(*program_);
  for (size_t b = 0; b < drains_.size(); ++b) {
    const BucketProgram& bucket = program_->buckets[b];
    drains_[b].is_due = !bucket.keeps_residual;
    drains_[b].is_parked_due = bucket.keeps_residual && residuals_.has_parked();
    // One of both, so that they do not drain side by side.
    if (drains_[b].is_due && residuals_.has_parked()) {
      residuals_.unpark(bucket.dtype, bucket.arena_begin, bucket.arena_begin + bucket.numel);
    }
  }
}

// Of a program that was just put in force: what others left in its buckets is parked.
void Workspace::take_residuals() {
  for (size_t b = 0; b < program_->buckets.size(); ++b) {
    const BucketProgram& bucket = program_->buckets[b];
    if (!bucket.keeps_residual) continue;
    const std::string codecs = codecs_of(program_->strategy.buckets[b].option);
    for (const OwnedRange& other : claim(holders_[static_cast<size_t>(bucket.dtype)], bucket.arena_begin,
                                         bucket.arena_begin + bucket.numel, codecs)) {
      residuals_.allocate(arenas_, {.parked = true});  // it is, since it was prepared
      residuals_.park(bucket.dtype, other.begin, other.end);
    }
  }
}

// All that is left to drain is in buckets that are due.
void Workspace::free_idle_residuals() {
  if (!is_committed_ || !residuals_.allocated()) return;
  for (const BucketDrain& bucket : drains_) {
    if (bucket.is_due || bucket.is_parked_due) return;
  }
  for (const auto& [slot, program] : slots_) {
    if (program.get() != program_ && program->keeps_residual) return;
  }
  residuals_.leave(*program_);
  residuals_.free_parked();
  holders_ = {};
  if (program_->keeps_residual) return take_residuals();
  residuals_ = {};
  residuals_.enter(*program_);
}

Carried Workspace::carried(bool residuals, bool parked) {
  core::check(program_ != nullptr, "what is carried depends on the strategy in force");
  residuals_.allocate(arenas_, {.own = residuals, .parked = parked});
  residuals_.leave(*program_);
  for (size_t b = 0; b < drains_.size() && parked && is_committed_; ++b) {
    drains_[b].is_parked_due = program_->buckets[b].keeps_residual;
  }
  Carried carried{
      .step = &step_, .holders = &holders_, .state = {states_.current(), static_cast<size_t>(program_->state_bytes)}};
  for (size_t d = 0; d < carried.residuals.size(); ++d) {
    carried.residuals[d] = residuals_.all(static_cast<core::DType>(d));
    carried.parked[d] = residuals_.all_parked(static_cast<core::DType>(d));
  }
  return carried;
}

// --- a step ----------------------------------------------------------------------------------------------------------

void Workspace::begin() {
  core::check(program_ != nullptr, "a strategy must be in force before a step begins");
  missing_tensors_.resize(program_->buckets.size());
  for (size_t b = 0; b < missing_tensors_.size(); ++b) {
    missing_tensors_[b] = program_->buckets[b].tensors;
    drains_[b].last = drains_[b].last_parked = {};
  }
  samples_.assign(program_->buckets.size(), {});
  control_.clear();
  finite_ = true;
}

bool Workspace::arrived(const Piece& piece, const std::byte* values) {
  const BucketProgram& bucket = this->bucket(piece.bucket);
  const int64_t width = core::bytes_per_element(bucket.dtype);
  if (values != nullptr) {
    std::memcpy(arenas_[static_cast<size_t>(bucket.dtype)].data + piece.arena_begin * width,
                values + piece.tensor_begin * width, static_cast<size_t>(piece.length * width));
  }
  return --missing_tensors_[static_cast<size_t>(piece.bucket)] == 0;
}

void Workspace::compute(int32_t bucket, int32_t op, compress::Queue& queue) {
  const BucketProgram& program = this->bucket(bucket);
  const BucketMemory memory = memory_of(bucket);
  const bool is_staged = program.staging >= 0;
  if (op == 0 && !is_staged) begin_bucket(bucket, queue);
  const ComputeResult result = run_op(program, this->op(bucket, op), memory, queue);
  if (op == 0 && is_staged) begin_bucket(bucket, queue);  // it was loaded
  if (op == program.sampled_op) {
    sample_error(program, this->op(bucket, op), memory, queue, samples_[static_cast<size_t>(bucket)]);
  }
  if (!result.finite) finite_.store(false, std::memory_order_relaxed);
  if (result.status) return;
  const std::lock_guard lock(undecodable_mutex_);
  if (undecodable_ && !undecodable_->is_excusable) return;
  undecodable_ = {
      {result.status.error().code, "bucket " + std::to_string(bucket) + ": " + result.status.error().message},
      /*is_excusable=*/!program.carries_nonfinite};
}

// With what the rest of the bucket's operations take for its gradient.
void Workspace::begin_bucket(int32_t bucket, compress::Queue& queue) {
  const auto index = static_cast<size_t>(bucket);
  const BucketProgram& program = program_->buckets[index];
  const BucketMemory memory = memory_of(bucket);
  if (program.keeps_residual && program.sampled_op >= 0) sample_residual(program, memory, samples_[index]);
  if (drains_[index].is_parked_due) {
    drains_[index].last_parked = drain({.gradient = dense(program, memory),
                                        .n = program.numel,
                                        .residual = residuals_.parked(program),
                                        .left_before = std::exchange(residuals_.parked_share(index), 1.0F)},
                                       queue);
  }
  if (!drains_[index].is_due || !residuals_.allocated()) return;
  const bool is_staged = program.staging >= 0;
  drains_[index].last = drain({.gradient = is_staged ? memory.pool + program.staging : memory.gradient,
                               .dtype = is_staged ? core::DType::f32 : program.dtype,
                               .n = program.numel,
                               .residual = residuals_.current(program, index),
                               .residual_next = residuals_.next(program, index)},
                              queue);
}

core::BucketLoss Workspace::loss(int32_t bucket) const {
  const LossSample& sample = samples_[static_cast<size_t>(bucket)];
  core::BucketLoss loss;
  if (sample.given > 0) loss.error = std::sqrt(sample.missed / sample.given);
  if (sample.gradient > 0) loss.residual = std::sqrt(sample.residual / sample.gradient);
  return loss;
}

comm::Collective Workspace::collective(int32_t bucket, int32_t op, int64_t timeout_ms) const {
  const Op& what = this->op(bucket, op);
  const BucketMemory memory = memory_of(bucket);
  std::byte* base = what.on_gradient ? memory.gradient : memory.pool;
  return {.kind = what.collective,
          .reduction = what.reduction,
          .type = what.wire,
          .in = base + what.input,
          .out = base + what.output,
          .count = what.count,
          .payload_bytes = what.payload_bytes,
          .used_bytes = what.payload_bytes > 0 ? what.codec->traits().used_bytes : nullptr,
          .root = what.root,
          .timeout_ms = timeout_ms};
}

core::Result<bool> Workspace::settle(bool finite) {
  const std::optional<Undecodable> undecodable = std::exchange(undecodable_, std::nullopt);
  if (undecodable && (finite || !undecodable->is_excusable)) return undecodable->error;
  if (finite && finite_) {
    settle_residuals();
    states_.swap();
    ++step_;
    return true;
  }
  spread_nan();
  return false;
}

void Workspace::spread_nan() {
  const bool was_drained = !control_.empty() && control_.back() != 0;
  for (size_t b = 0; b < program_->buckets.size(); ++b) {
    const BucketProgram& bucket = program_->buckets[b];
    std::byte* const gradient = memory_of(static_cast<int32_t>(b)).gradient;
    bucket.carries_nonfinite && !was_drained ? make_nans_alike(gradient, bucket.dtype, bucket.numel)
                                             : fill_with_nan(gradient, bucket.dtype, bucket.numel);
  }
}

void Workspace::settle_residuals() {
  bool is_drained = false;
  for (size_t b = 0; b < drains_.size(); ++b) {
    BucketDrain& drain = drains_[b];
    if (program_->buckets[b].keeps_residual || drain.last.added) residuals_.swap(b);
    if (drain.last_parked.added) residuals_.parked_share(b) = 1 - drain.last_parked.share;
    const bool ends = drain.is_due && !drain.last.left, parked_ends = drain.is_parked_due && !drain.last_parked.left;
    drain.is_due = drain.is_due && !ends;
    drain.is_parked_due = drain.is_parked_due && !parked_ends;
    is_drained = is_drained || ends || parked_ends;
  }
  if (is_drained) free_idle_residuals();
}

BucketMemory Workspace::memory_of(int32_t bucket) const {
  const auto index = static_cast<size_t>(bucket);
  const BucketProgram& program = program_->buckets[index];
  const Arena& arena = arenas_[static_cast<size_t>(program.dtype)];
  return {.pool = pool_.data(),
          .gradient = arena.data + program.arena_begin * core::bytes_per_element(program.dtype),
          .residual = program.keeps_residual ? residuals_.current(program, index) : nullptr,
          .residual_next = program.keeps_residual ? residuals_.next(program, index) : nullptr,
          .state = states_.current(),
          .state_next = states_.next(),
          .size = seat_.size,
          .seed = seed_,
          .step = step_};
}

// --- collectives -----------------------------------------------------------------------------------------------------

comm::Collective Workspace::control(std::span<double> word, int64_t timeout_ms) {
  word_ = word;
  control_.assign(word.begin(), word.end());
  const bool was_drained =
      std::any_of(drains_.begin(), drains_.end(), [](const BucketDrain& drain) { return drain.last.added; });
  control_.push_back(was_drained ? 1 : 0);
  return {.kind = comm::Collective::Kind::all_reduce,
          .reduction = comm::Collective::Reduction::max,
          .type = comm::WireType::f64,
          .out = reinterpret_cast<std::byte*>(control_.data()),
          .count = static_cast<int64_t>(control_.size()),
          .timeout_ms = timeout_ms};
}

void Workspace::control_done() { std::copy_n(control_.begin(), word_.size(), word_.begin()); }

core::Error named(uint64_t token, const core::Error& error) {
  const std::string what =
      token == kControlToken ? "the control collective" : "a collective of bucket " + std::to_string(bucket_of(token));
  return {error.code, what + " failed: " + error.message};
}

}  // namespace gradtune::exec
