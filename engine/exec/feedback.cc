// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/feedback.h"

#include <set>
#include <string>
#include <utility>

#include "engine/exec/draining.h"

namespace gradtune::exec {

// --- between steps ---------------------------------------------------------------------------------------------------

void Feedback::set_gradients(const Arenas& arenas, bool are_same) {
  if (program_ != nullptr) leave();
  program_ = nullptr;
  is_committed_ = false;
  if (!are_same) {
    residuals_ = Residuals(spaces_.allocators());
    holders_ = {};
  }
  arenas_ = arenas;
  holders_.resize(arenas_.size());
}

// Parked residuals are needed if the strategy may find residuals of another strategy's codecs when it is put in
// force, or leave its own to another.
Residuals::Parts Feedback::needed_by(const Program& program, const Slots& ready) const {
  if (!program.keeps_residual) return {};
  std::set<std::string> codecs;
  const auto add = [&](const Program& each) {
    for (size_t b = 0; b < each.buckets.size(); ++b) {
      if (each.buckets[b].keeps_residual) codecs.insert(codecs_of(each.strategy.buckets[b].option));
    }
  };
  add(program);
  for (const auto& [slot, each] : ready) add(*each);
  for (const std::vector<OwnedRange>& of_arena : holders_) {
    for (const OwnedRange& held : of_arena) codecs.insert(held.codecs);
  }
  return {.own = true, .parked = codecs.size() > 1};
}

void Feedback::run(const Program& program) {
  is_committed_ = false;
  drains_.assign(program.buckets.size(), {});
  if (&program == program_) return;
  if (program_ != nullptr) leave();
  program_ = &program;
  residuals_.enter(program);
  park_others();
}

void Feedback::commit() {
  is_committed_ = true;
  leave();
  for (size_t b = 0; b < drains_.size(); ++b) {
    const BucketProgram& bucket = program_->buckets[b];
    drains_[b].is_due = !bucket.keeps_residual;
    drains_[b].is_parked_due = bucket.keeps_residual && residuals_.has_parked();
    // The two kinds are merged, so that they do not drain side by side.
    if (drains_[b].is_due && residuals_.has_parked()) {
      residuals_.unpark(static_cast<size_t>(bucket.arena), bucket.arena_begin, bucket.arena_begin + bucket.numel);
    }
  }
}

// Parks the residuals that others left in buckets of the program in force. All of them are at home.
void Feedback::park_others() {
  for (size_t b = 0; b < program_->buckets.size(); ++b) {
    const BucketProgram& bucket = program_->buckets[b];
    if (!bucket.keeps_residual) continue;
    const auto arena = static_cast<size_t>(bucket.arena);
    const std::string codecs = codecs_of(program_->strategy.buckets[b].option);
    for (const OwnedRange& other :
         claim(holders_[arena], bucket.arena_begin, bucket.arena_begin + bucket.numel, codecs)) {
      allocate({.parked = true});  // already allocated, since the program was prepared
      residuals_.park(arena, other.begin, other.end);
    }
  }
}

void Feedback::free_idle(const Slots& ready) {
  if (!is_committed_ || !residuals_.allocated()) return;
  for (const BucketDrain& bucket : drains_) {
    if (bucket.is_due || bucket.is_parked_due) return;
  }
  for (const auto& [slot, program] : ready) {
    if (program.get() != program_ && program->keeps_residual) return;
  }
  leave();
  residuals_.free_parked();
  holders_.assign(arenas_.size(), {});
  if (program_->keeps_residual) return park_others();
  residuals_ = Residuals(spaces_.allocators());
  residuals_.enter(*program_);
}

core::Status Feedback::bring() { return residuals_.bring(*program_, spaces_.queue(), spaces_.timeout_ms); }

void Feedback::carry(const Residuals::Parts& parts, Carried& carried) {
  allocate(parts);
  leave();
  for (size_t b = 0; b < drains_.size() && parts.parked && is_committed_; ++b) {
    drains_[b].is_parked_due = program_->buckets[b].keeps_residual;
  }
  carried.holders = &holders_;
  for (size_t arena = 0; arena < arenas_.size(); ++arena) {
    carried.residuals.push_back(residuals_.all(arena));
    carried.parked.push_back(residuals_.all_parked(arena));
  }
}

// --- a step ----------------------------------------------------------------------------------------------------------

bool Feedback::owes(int32_t bucket) const {
  const BucketDrain& drain = drains_[static_cast<size_t>(bucket)];
  return drain.is_parked_due || (drain.is_due && residuals_.allocated());
}

void Feedback::drain(int32_t bucket, const BucketMemory& memory, compress::Queue& queue, Findings& findings) {
  const auto index = static_cast<size_t>(bucket);
  const BucketProgram& program = program_->buckets[index];
  const auto drain_there = [&](const auto& job, Drained& result) {
    if (queue.space() == core::Space::host) {
      result = exec::drain(job, compress::host(queue));
    } else {
      spaces_.device->kernels()->drain(job, result, queue);
    }
  };
  if (drains_[index].is_parked_due) {
    drain_there(ParkedDrain{.gradient = dense(program, memory, program.begins_in),
                            .n = program.numel,
                            .residual = residuals_.parked(program),
                            .left_before = std::exchange(residuals_.parked_share(index), 1.0F)},
                findings.drained_parked);
  }
  if (!drains_[index].is_due || !residuals_.allocated()) return;
  drain_there(Drain{.gradient = memory.at(program.dense[program.begins_in]),
                    .dtype = program.staged > 0 ? core::DType::f32 : program.dtype,
                    .n = program.numel,
                    .residual = residuals_.current(program, index),
                    .residual_next = residuals_.next(program, index)},
              findings.drained);
}

void Feedback::settle(std::span<const Findings> findings, const Slots& ready) {
  bool is_drained = false;
  for (size_t b = 0; b < drains_.size(); ++b) {
    BucketDrain& drain = drains_[b];
    const Drained &last = findings[b].drained, &last_parked = findings[b].drained_parked;
    if (program_->buckets[b].keeps_residual || last.added) residuals_.swap(b);
    if (last_parked.added) residuals_.parked_share(b) = 1 - last_parked.share;
    const bool ends = drain.is_due && !last.left, parked_ends = drain.is_parked_due && !last_parked.left;
    drain.is_due = drain.is_due && !ends;
    drain.is_parked_due = drain.is_parked_due && !parked_ends;
    is_drained = is_drained || ends || parked_ends;
  }
  if (is_drained) free_idle(ready);
}

void Feedback::describe(int32_t bucket, BucketMemory& memory) const {
  const auto index = static_cast<size_t>(bucket);
  const BucketProgram& program = program_->buckets[index];
  memory.residual = program.keeps_residual ? residuals_.current(program, index) : nullptr;
  memory.residual_next = program.keeps_residual ? residuals_.next(program, index) : nullptr;
}

}  // namespace gradtune::exec
