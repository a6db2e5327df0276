// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/workspace.h"

#include <algorithm>
#include <cmath>
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
  holders_.resize(arenas_.size());
}

core::Result<std::unique_ptr<Program>> Workspace::compile(int32_t slot, const core::Strategy& strategy) const {
  core::check(program_ == nullptr || find(slot) != program_, "the strategy in force can not be replaced");
  if (core::Status status = core::validate(strategy, table_); !status) return status.error();
  return exec::compile(strategy, table_, seat_, scratch_);
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

// Whether residuals of another strategy's codecs may be there when this one takes its turn, or its own when another
// does.
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
  for (const std::vector<OwnedRange>& of_arena : holders_) {
    for (const OwnedRange& held : of_arena) codecs.insert(held.codecs);
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
  missing_tensors_.assign(program_->buckets.size(), 0);
  samples_.assign(program_->buckets.size(), {});
  verdicts_.assign(static_cast<size_t>(program_->ops), {});
  rejections_.assign(program_->buckets.size(), std::nullopt);
  losses_.assign(program_->buckets.size(), {});
  is_concluded_.assign(program_->buckets.size(), false);
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
      residuals_.unpark(static_cast<size_t>(bucket.arena), bucket.arena_begin, bucket.arena_begin + bucket.numel);
    }
  }
}

// Of a program that was just put in force: what others left in its buckets is parked.
void Workspace::take_residuals() {
  for (size_t b = 0; b < program_->buckets.size(); ++b) {
    const BucketProgram& bucket = program_->buckets[b];
    if (!bucket.keeps_residual) continue;
    const auto arena = static_cast<size_t>(bucket.arena);
    const std::string codecs = codecs_of(program_->strategy.buckets[b].option);
    for (const OwnedRange& other :
         claim(holders_[arena], bucket.arena_begin, bucket.arena_begin + bucket.numel, codecs)) {
      residuals_.allocate(arenas_, {.parked = true});  // it is, since it was prepared
      residuals_.park(arena, other.begin, other.end);
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
  holders_.assign(arenas_.size(), {});
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
  for (size_t arena = 0; arena < arenas_.size(); ++arena) {
    carried.residuals.push_back(residuals_.all(arena));
    carried.parked.push_back(residuals_.all_parked(arena));
  }
  return carried;
}

// --- a step ----------------------------------------------------------------------------------------------------------

void Workspace::begin() {
  core::check(program_ != nullptr, "a strategy must be in force before a step begins");
  for (size_t b = 0; b < missing_tensors_.size(); ++b) {
    missing_tensors_[b] = program_->buckets[b].tensors;
    drains_[b].last = drains_[b].last_parked = {};
  }
  std::ranges::fill(samples_, LossSample());
  std::ranges::fill(verdicts_, compress::Verdict());
  std::ranges::fill(rejections_, std::nullopt);
  std::fill(is_concluded_.begin(), is_concluded_.end(), false);
  control_.clear();
  counts_ = false;
}

bool Workspace::arrived(const Piece& piece, const std::byte* values, compress::Queue& queue) {
  const BucketProgram& bucket = this->bucket(piece.bucket);
  const int64_t width = core::bytes_per_element(bucket.dtype);
  if (values != nullptr) {
    queue.copy(arenas_[static_cast<size_t>(bucket.arena)].data + piece.arena_begin * width,
               values + piece.tensor_begin * width, piece.length * width);
  }
  return --missing_tensors_[static_cast<size_t>(piece.bucket)] == 0;
}

void Workspace::compute(int32_t bucket, int32_t op, compress::Queue& queue) {
  const BucketProgram& program = this->bucket(bucket);
  const BucketMemory memory = memory_of(bucket);
  const bool is_staged = program.staging >= 0;
  if (op == 0 && !is_staged) begin_bucket(bucket, queue);
  compress::Verdict& verdict = verdicts_[static_cast<size_t>(program.first_op + op)];
  core::Status decoded = run_op(program, this->op(bucket, op), memory, queue, verdict);
  if (op == 0 && is_staged) begin_bucket(bucket, queue);  // it was loaded
  if (op == program.sampled_op) {
    sample_error(program, this->op(bucket, op), memory, compress::host(queue), samples_[static_cast<size_t>(bucket)]);
  }
  std::optional<core::Error>& rejected = rejections_[static_cast<size_t>(bucket)];
  if (!decoded && !rejected) {
    rejected = {decoded.error().code, "bucket " + std::to_string(bucket) + ": " + decoded.error().message};
  }
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
                                       compress::host(queue));
  }
  if (!drains_[index].is_due || !residuals_.allocated()) return;
  const bool is_staged = program.staging >= 0;
  drains_[index].last = drain({.gradient = is_staged ? memory.pool + program.staging : memory.gradient,
                               .dtype = is_staged ? core::DType::f32 : program.dtype,
                               .n = program.numel,
                               .residual = residuals_.current(program, index),
                               .residual_next = residuals_.next(program, index)},
                              compress::host(queue));
}

void Workspace::keep_loss(int32_t bucket) {
  const LossSample& sample = samples_[static_cast<size_t>(bucket)];
  core::BucketLoss loss;
  if (sample.given > 0) loss.error = std::sqrt(sample.missed / sample.given);
  if (sample.gradient > 0) loss.residual = std::sqrt(sample.residual / sample.gradient);
  losses_[static_cast<size_t>(bucket)] = loss;
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
          .timeout_ms = timeout_ms,
          .scratch = what.comm_scratch_bytes > 0 ? memory.pool + what.comm_scratch : nullptr};
}

bool Workspace::is_finite(int32_t bucket) const {
  const BucketProgram& program = this->bucket(bucket);
  const auto first = verdicts_.begin() + program.first_op;
  return std::all_of(first, first + static_cast<std::ptrdiff_t>(program.ops.size()),
                     [](const compress::Verdict& verdict) { return verdict.nonfinite == 0; });
}

// What was found of the bucket's payloads, unless values that are not finite excuse it.
core::Status Workspace::rejection(int32_t bucket, bool finite) const {
  const std::optional<core::Error>& rejected = rejections_[static_cast<size_t>(bucket)];
  const bool is_excused = !finite && !this->bucket(bucket).carries_nonfinite;
  if (rejected && !is_excused) return *rejected;
  return {};
}

core::Result<bool> Workspace::conclude(bool finite, compress::Queue& queue) {
  const auto buckets = static_cast<int32_t>(program_->buckets.size());
  counts_ = finite;
  for (int32_t b = 0; b < buckets; ++b) {
    if (bucket(b).due != core::Due::backward) continue;
    if (core::Status decoded = rejection(b, finite); !decoded) return decoded.error();
    counts_ = counts_ && is_finite(b);
    keep_loss(b);
  }
  for (int32_t b = 0; b < buckets && !counts_; ++b) {
    if (bucket(b).due == core::Due::backward) poison(b, queue);
  }
  return counts_;
}

core::Status Workspace::conclude_late(int32_t bucket, compress::Queue& queue) {
  const auto index = static_cast<size_t>(bucket);
  if (is_concluded_[index]) return {};
  is_concluded_[index] = true;
  if (core::Status decoded = rejection(bucket, counts_); !decoded) return decoded;
  if (!counts_) {
    poison(bucket, queue);
  } else if (!is_finite(bucket)) {
    return core::Error{core::Error::Code::corrupt, "bucket " + std::to_string(bucket) +
                                                       " is not finite, though all ranks were when backward ended"};
  }
  return {};
}

void Workspace::settle() {
  for (size_t b = 0; b < program_->buckets.size(); ++b) {
    if (program_->buckets[b].due == core::Due::forward) keep_loss(static_cast<int32_t>(b));
  }
  if (!counts_) return;
  settle_residuals();
  states_.swap();
  ++step_;
}

void Workspace::poison(int32_t index, compress::Queue& queue) {
  const bool was_drained = !control_.empty() && control_.back() != 0;
  const BucketProgram& program = bucket(index);
  std::byte* const gradient = memory_of(index).gradient;
  if (program.carries_nonfinite && !was_drained) {
    core::check(queue.space() == core::Space::host, "gradients are in memory of the host");
    make_nans_alike(gradient, program.dtype, program.numel);
  } else {
    queue.fill(gradient, kNanByte, program.numel * core::bytes_per_element(program.dtype));
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
  const Arena& arena = arenas_[static_cast<size_t>(program.arena)];
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
