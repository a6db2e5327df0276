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

Workspace::Workspace(const core::Seat& seat, uint64_t seed, Platform platform, int64_t timeout_ms)
    : seat_(seat),
      seed_(seed),
      platform_(std::move(platform)),
      timeout_ms_(timeout_ms),
      allocators_(platform_.device == nullptr ? Allocators()
                                              : Allocators{{&platform_.device->pinned(), &platform_.device->memory()}}),
      residuals_(allocators_) {}

compress::Queue* Workspace::device_queue() const {
  return platform_.device == nullptr ? nullptr : &platform_.device->current();
}

// --- between steps ---------------------------------------------------------------------------------------------------

void Workspace::set_gradients(const core::GradientTable& table, const Arenas& arenas) {
  if (program_ != nullptr) residuals_.leave(*program_, device_queue(), timeout_ms_).value();
  program_ = nullptr;
  is_committed_ = false;
  slots_.clear();
  if (!same_elements(table_, table)) {
    residuals_ = Residuals(allocators_);
    holders_ = {};
  }
  table_ = table;
  arenas_ = arenas;
  holders_.resize(arenas_.size());
}

core::Result<std::unique_ptr<Program>> Workspace::compile(int32_t slot, const core::Strategy& strategy) const {
  core::check(program_ == nullptr || find(slot) != program_, "the strategy in force can not be replaced");
  if (core::Status status = core::validate(strategy, table_); !status) return status.error();
  return exec::compile(strategy, table_, seat_, platform_);
}

core::Status Workspace::add(int32_t slot, std::unique_ptr<Program> program, int64_t memory_budget_bytes) {
  if (core::Status status = reserve(*program, memory_budget_bytes); !status) return status;
  slots_[slot] = std::move(program);
  return {};
}

core::PerSpace<int64_t> Workspace::needed_by(const Program& program) const {
  core::PerSpace<int64_t> bytes =
      residuals_.bytes_after(arenas_, {.own = program.keeps_residual, .parked = needs_parked(program)});
  for (const core::Space space : core::kSpaces) {
    bytes[space] += std::max(pools_[space].bytes(), program.pool_bytes[space]);
    bytes[space] += std::max(states_[space].bytes(), 2 * program.states_bytes[space]);
  }
  return bytes;
}

core::Status Workspace::reserve(const Program& program, int64_t memory_budget_bytes) {
  const core::PerSpace<int64_t> bytes = needed_by(program);
  const auto needs = [&](core::Space space) {
    return "the strategy needs " + std::to_string(bytes[space]) + " bytes of residual and payload memory" +
           (space == core::Space::host ? "" : " on " + std::string(core::to_string(space))) + ", ";
  };
  for (const core::Space space : core::kSpaces) {
    if (bytes[space] <= memory_budget_bytes) continue;
    return core::Error{core::Error::Code::invalid,
                       needs(space) + "memory_budget allows " + std::to_string(memory_budget_bytes)};
  }
  core::Space space = core::Space::host;
  try {
    // Zeros, so that page faults occur here and not in a measured step. Nothing is kept before all allocations have
    // succeeded.
    core::PerSpace<AlignedBytes> pools;
    core::PerSpace<std::optional<States>> states;
    for (const core::Space each : core::kSpaces) {
      space = each;
      compress::Queue* const queue = each == core::Space::host ? nullptr : device_queue();
      const int64_t pool_bytes = program.pool_bytes[each];
      if (pool_bytes > pools_[each].bytes()) {
        // Pinned memory is touched when it is pinned.
        const bool is_plain = each == core::Space::host && allocators_[each] == nullptr;
        pools[each] = is_plain ? AlignedBytes::zeros_but(pool_bytes, program.untouched)
                               : AlignedBytes::zeros(pool_bytes, allocators_[each]);
      }
      states[each] = states_[each].larger(program.states_bytes[each], allocators_[each], queue);
      if (states[each] && queue != nullptr) queue->mark().wait(timeout_ms_).value();
    }
    residuals_.allocate(arenas_, {.own = program.keeps_residual, .parked = needs_parked(program)});
    for (const core::Space each : core::kSpaces) {
      if (pools[each].bytes() > 0) pools_[each] = std::move(pools[each]);
      if (states[each]) states_[each] = std::move(*states[each]);
    }
  } catch (const std::bad_alloc&) {
    return core::Error{core::Error::Code::io, needs(space) + "the system has not that much"};
  }
  return {};
}

// True if this strategy may find residuals of another strategy's codecs when it is put in force, or leave its own to
// another.
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
  left_.assign(next->buckets.size(), std::nullopt);
  if (next == program_) return;
  if (program_ != nullptr) residuals_.leave(*program_, device_queue(), timeout_ms_).value();
  program_ = next;
  residuals_.enter(*program_);
  take_residuals();
  states_[core::Space::host].clear();
  if (states_[core::Space::cuda].bytes() > 0) {
    states_[core::Space::cuda].clear(*device_queue());
    device_queue()->mark().wait(timeout_ms_).value();
  }
  state_at_home_ = AlignedBytes();
  missing_tensors_.assign(program_->buckets.size(), 0);
  findings_.assign(program_->buckets.size(), {});
  verdicts_.assign(static_cast<size_t>(program_->ops), {});
  rejections_.assign(program_->buckets.size(), std::nullopt);
  losses_.assign(program_->buckets.size(), {});
  is_concluded_.assign(program_->buckets.size(), false);
  rows_.clear();
  for (const BucketProgram& bucket : program_->buckets) {
    std::unique_ptr<RowState>& state = rows_.emplace_back();
    if (!bucket.lists) continue;
    state = std::make_unique<RowState>();
    state->order = core::RowOrder(bucket.lists->rows);
  }
}

void Workspace::commit(int32_t slot) {
  run(slot);
  is_committed_ = true;
  residuals_.leave(*program_, device_queue(), timeout_ms_).value();
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

// Called for a program that was just put in force: parks the residuals that others left in its buckets.
void Workspace::take_residuals() {
  for (size_t b = 0; b < program_->buckets.size(); ++b) {
    const BucketProgram& bucket = program_->buckets[b];
    if (!bucket.keeps_residual) continue;
    const auto arena = static_cast<size_t>(bucket.arena);
    const std::string codecs = codecs_of(program_->strategy.buckets[b].option);
    for (const OwnedRange& other :
         claim(holders_[arena], bucket.arena_begin, bucket.arena_begin + bucket.numel, codecs)) {
      residuals_.allocate(arenas_, {.parked = true});  // already allocated, since the program was prepared
      residuals_.park(arena, other.begin, other.end);
    }
  }
}

// Frees residuals if no bucket has any left to drain.
void Workspace::free_idle_residuals() {
  if (!is_committed_ || !residuals_.allocated()) return;
  for (const BucketDrain& bucket : drains_) {
    if (bucket.is_due || bucket.is_parked_due) return;
  }
  for (const auto& [slot, program] : slots_) {
    if (program.get() != program_ && program->keeps_residual) return;
  }
  residuals_.leave(*program_, device_queue(), timeout_ms_).value();
  residuals_.free_parked();
  holders_.assign(arenas_.size(), {});
  if (program_->keeps_residual) return take_residuals();
  residuals_ = Residuals(allocators_);
  residuals_.enter(*program_);
}

// The current state; if some of it is on a device, a copy of all.
std::span<std::byte> Workspace::carried_state() {
  const core::PerSpace<int64_t>& bytes = program_->states_bytes;
  const auto here = static_cast<size_t>(bytes[core::Space::host]);
  std::byte* const current = states_[core::Space::host].current();
  if (bytes[core::Space::cuda] == 0) return {current, here};
  if (state_at_home_.bytes() == 0) {
    state_at_home_ = AlignedBytes::zeros(program_->state_bytes, allocators_[core::Space::host]);
    if (here > 0) std::memcpy(state_at_home_.data(), current, here);
    compress::Queue& queue = *device_queue();
    queue.copy(state_at_home_.data() + here, states_[core::Space::cuda].current(), bytes[core::Space::cuda]);
    queue.mark().wait(timeout_ms_).value();
  }
  return {state_at_home_.data(), static_cast<size_t>(state_at_home_.bytes())};
}

core::Status Workspace::bring() {
  if (platform_.device == nullptr || program_ == nullptr) return {};
  if (core::Status there = residuals_.bring(*program_, device_queue(), timeout_ms_); !there) return there;
  if (state_at_home_.bytes() == 0) return {};
  const auto here = static_cast<size_t>(program_->states_bytes[core::Space::host]);
  if (here > 0) std::memcpy(states_[core::Space::host].current(), state_at_home_.data(), here);
  compress::Queue& queue = *device_queue();
  queue.copy(states_[core::Space::cuda].current(), state_at_home_.data() + here,
             program_->states_bytes[core::Space::cuda]);
  core::Status there = queue.mark().wait(timeout_ms_);
  state_at_home_ = AlignedBytes();
  return there;
}

Carried Workspace::carried(bool residuals, bool parked) {
  core::check(program_ != nullptr, "what is carried depends on the strategy in force");
  residuals_.allocate(arenas_, {.own = residuals, .parked = parked});
  residuals_.leave(*program_, device_queue(), timeout_ms_).value();
  std::ranges::fill(left_, std::nullopt);  // the caller may write other residuals
  for (size_t b = 0; b < drains_.size() && parked && is_committed_; ++b) {
    drains_[b].is_parked_due = program_->buckets[b].keeps_residual;
  }
  Carried carried{.step = &step_, .holders = &holders_, .state = carried_state()};
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
  }
  std::ranges::fill(findings_, Findings());
  std::ranges::fill(verdicts_, compress::Verdict());
  std::ranges::fill(rejections_, std::nullopt);
  std::fill(is_concluded_.begin(), is_concluded_.end(), false);
  control_.clear();
  counts_ = false;
}

bool Workspace::is_balanced(int32_t bucket) const {
  return exec::is_balanced(bucket, step_) && can_be_balanced(this->bucket(bucket));
}

// True if residuals of earlier strategies are to be added to the bucket's gradient.
bool Workspace::owes(int32_t bucket) const {
  const BucketDrain& drain = drains_[static_cast<size_t>(bucket)];
  return drain.is_parked_due || (drain.is_due && residuals_.allocated());
}

void Workspace::compute(int32_t bucket, int32_t op, compress::Queue& queue) {
  const BucketProgram& program = this->bucket(bucket);
  const BucketMemory memory = memory_of(bucket);
  const Op& what = this->op(bucket, op);
  const bool is_away = what.space != core::Space::host;
  std::byte* const away = is_away ? report(bucket, what.space) : nullptr;
  Findings& findings = is_away ? *reinterpret_cast<Findings*>(away) : findings_[static_cast<size_t>(bucket)];
  compress::Verdict& verdict = is_away ? reinterpret_cast<compress::Verdict*>(away + sizeof(Findings))[op]
                                       : verdicts_[static_cast<size_t>(program.first_op + op)];
  if (is_away && op == 0) queue.fill(away, std::byte{0}, report_bytes(program));
  if (op == 0 && program.lists && owes(bucket)) lay_out(bucket);
  if (op == program.first_work) begin_bucket(bucket, findings, queue);
  core::Status decoded;
  if (op > 0 || !scales_arrivals(bucket)) decoded = run_op(program, what, memory, queue, verdict);
  if (op == program.sampled_op) sample_error(program, what, memory, queue, findings.sample, findings.of_sample);
  if (is_balanced(bucket)) {
    if (op == program.sampled_op) find_balance(program, memory, queue, findings.balance, findings.of_sample);
    if (op == last_to_keep(program)) find_left(program, memory, queue, findings.balance);
  }
  const bool is_last = static_cast<size_t>(op) + 1 == program.ops.size();
  if (is_away && (what.is_told || is_last)) {
    queue.copy(report(bucket, core::Space::host), away, report_bytes(program));
  }
  std::optional<core::Error>& rejected = rejections_[static_cast<size_t>(bucket)];
  if (!decoded && !rejected) {
    rejected = {decoded.error().code, "bucket " + std::to_string(bucket) + ": " + decoded.error().message};
  }
}

// Works on the memory that the bucket's later operations take for its gradient.
void Workspace::begin_bucket(int32_t bucket, Findings& findings, compress::Queue& queue) {
  const auto index = static_cast<size_t>(bucket);
  const BucketProgram& program = program_->buckets[index];
  const BucketMemory memory = memory_of(bucket);
  const auto drain_there = [&](const auto& job, Drained& result) {
    if (queue.space() == core::Space::host) {
      result = drain(job, compress::host(queue));
    } else {
      platform_.device->kernels()->drain(job, result, queue);
    }
  };
  if (program.keeps_residual && program.sampled_op >= 0) sample_residual(program, memory, queue, findings.sample);
  if (left_[index]) find_begin(program, memory, queue, findings.balance);
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

std::byte* Workspace::report(int32_t bucket, core::Space space) const {
  return pools_[space].data() + program_->reports[space] +
         report_begin(static_cast<size_t>(bucket), this->bucket(bucket).first_op);
}

void Workspace::take_report(int32_t bucket) {
  const BucketProgram& program = this->bucket(bucket);
  if (program.space == core::Space::host) return;
  const std::byte* const here = report(bucket, core::Space::host);
  const Findings& away = *reinterpret_cast<const Findings*>(here);
  const auto* const verdicts = reinterpret_cast<const compress::Verdict*>(here + sizeof(Findings));
  const auto is_away = [&](size_t op) { return program.ops[op].space != core::Space::host; };
  for (size_t op = 0; op < program.ops.size(); ++op) {
    if (is_away(op)) verdicts_[static_cast<size_t>(program.first_op) + op] = verdicts[op];
  }
  Findings& findings = findings_[static_cast<size_t>(bucket)];
  if (program.begins_in != core::Space::host) {
    findings.drained = away.drained;
    findings.drained_parked = away.drained_parked;
    findings.sample.gradient = away.sample.gradient;
    findings.sample.residual = away.sample.residual;
    findings.balance.begin = away.balance.begin;
  }
  if (program.sampled_op >= 0 && is_away(static_cast<size_t>(program.sampled_op))) {
    findings.sample.given = away.sample.given;
    findings.sample.missed = away.sample.missed;
    findings.of_sample = away.of_sample;
    findings.balance.given = away.balance.given;
    findings.balance.sent = away.balance.sent;
    findings.balance.kept = away.balance.kept;
  }
  const int32_t last = last_to_keep(program);
  if (last >= 0 && is_away(static_cast<size_t>(last))) findings.balance.left = away.balance.left;
}

void Workspace::keep_loss(int32_t bucket) {
  const Findings& findings = findings_[static_cast<size_t>(bucket)];
  const LossSample& sample = findings.sample;
  const bool is_clean = findings.of_sample.nonfinite == 0 && findings.of_sample.rejected == 0;
  core::BucketLoss loss;
  if (is_clean && sample.given > 0) loss.error = std::sqrt(sample.missed / sample.given);
  if (sample.gradient > 0) {
    loss.residual = std::sqrt(sample.residual / sample.gradient);
    loss.gradient = std::sqrt(sample.gradient);
  }
  const Balance& balance = findings.balance;
  const std::optional<Total>& left = left_[static_cast<size_t>(bucket)];
  if (is_balanced(bucket)) loss.imbalance = imbalance(balance, seat_.size);
  if (left) loss.imbalance = std::max(loss.imbalance, loss_of_residual(*left, balance.begin));
  losses_[static_cast<size_t>(bucket)] = loss;
}

comm::Collective Workspace::collective(int32_t bucket, int32_t op, int64_t timeout_ms) const {
  const Op& what = this->op(bucket, op);
  const BucketMemory memory = memory_of(bucket);
  return {.kind = what.collective,
          .reduction = what.reduction,
          .type = what.wire,
          .in = memory.at(what.input),
          .out = memory.at(what.output),
          .count = what.count,
          .payload_bytes = what.payload_bytes,
          // The host cannot look at payloads on a device, so all of each payload travels there.
          .used_bytes =
              what.payload_bytes > 0 && what.space == core::Space::host ? what.codec->traits().used_bytes : nullptr,
          .among = what.among,
          .root = what.root,
          .timeout_ms = timeout_ms,
          .scratch = what.comm_scratch_bytes > 0 ? memory.pools[what.space] + what.comm_scratch : nullptr};
}

bool Workspace::is_finite(int32_t bucket) const {
  const BucketProgram& program = this->bucket(bucket);
  for (size_t op = 0; op < program.ops.size(); ++op) {
    if (verdict(bucket, static_cast<int32_t>(op)).nonfinite != 0) return false;
  }
  return true;
}

// The error found in the bucket's payloads, unless non-finite values excuse it.
core::Status Workspace::rejection(int32_t bucket, bool finite) const {
  const std::optional<core::Error>& rejected = rejections_[static_cast<size_t>(bucket)];
  const bool is_excused = !finite && !this->bucket(bucket).carries_nonfinite;
  if (is_excused) return {};
  if (rejected) return *rejected;
  const BucketProgram& program = this->bucket(bucket);
  for (size_t op = 0; op < program.ops.size() && program.space != core::Space::host; ++op) {
    // The payload may be overwritten after its decode, so the verdict has to say which one was wrong.
    const uint32_t position = verdict(bucket, static_cast<int32_t>(op)).rejected;
    const Op& what = program.ops[op];
    if (position == 0 || what.codec == nullptr) continue;
    return core::Error{core::Error::Code::corrupt, "bucket " + std::to_string(bucket) + ": payload " +
                                                       std::to_string(position - 1) + " of " +
                                                       core::to_string(what.codec->spec()) +
                                                       " can not be decoded: its header, counts, indices or scales are "
                                                       "not those of a payload of this length"};
  }
  return {};
}

core::Result<bool> Workspace::conclude(bool finite, compress::Queue& queue) {
  const auto buckets = static_cast<int32_t>(program_->buckets.size());
  counts_ = finite;
  for (int32_t b = 0; b < buckets; ++b) {
    if (bucket(b).due != core::Due::backward) continue;
    take_report(b);
    if (core::Status decoded = rejection(b, finite); !decoded) return decoded.error();
    counts_ = counts_ && is_finite(b);
    keep_loss(b);
  }
  for (int32_t b = 0; b < buckets && !counts_; ++b) {
    if (bucket(b).due == core::Due::backward) poison(b, queue);
  }
  for (int32_t b = 0; b < buckets; ++b) {
    if (came_dense(b)) write_list(b);
  }
  return counts_;
}

core::Status Workspace::conclude_late(int32_t bucket, compress::Queue& queue) {
  const auto index = static_cast<size_t>(bucket);
  if (is_concluded_[index]) return {};
  is_concluded_[index] = true;
  take_report(bucket);
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
  for (size_t b = 0; b < left_.size(); ++b) {
    const auto index = static_cast<int32_t>(b);
    const bool is_known = is_balanced(index) && last_to_keep(bucket(index)) >= 0;
    left_[b] = is_known ? std::optional(findings_[b].balance.left) : std::nullopt;
  }
  settle_residuals();
  for (States& states : states_.values) states.swap();
  ++step_;
}

void Workspace::poison(int32_t index, compress::Queue& queue) {
  const bool was_drained = !control_.empty() && control_.back() != 0;
  const BucketProgram& program = bucket(index);
  if (const RowState* const rows = rows_[static_cast<size_t>(index)].get()) {
    const compress::RowBuffer& list = rows->lists[static_cast<size_t>(program.lists->result)];
    const int64_t n = list.count * program.lists->width;
    if (was_drained) queue.fill(list.values, kNanByte, n * static_cast<int64_t>(sizeof(float)));
    return make_nans_alike(reinterpret_cast<std::byte*>(list.values), core::DType::f32, n);
  }
  const BucketMemory memory = memory_of(index);
  const bool is_away = program.space != core::Space::host;
  const int64_t bytes = program.numel * core::bytes_per_element(program.dtype);
  compress::Queue& here = is_away ? platform_.device->current() : queue;
  if (!program.carries_nonfinite || was_drained) {
    here.fill(memory.gradient, kNanByte, bytes);
  } else if (!is_away) {
    make_nans_alike(memory.gradient, program.dtype, program.numel);
  } else if (Kernels* const kernels = platform_.device->kernels()) {
    kernels->make_nans_alike(memory.gradient, program.dtype, program.numel, here);
  } else {  // the numbers that were copied to the device are still here
    std::byte* const numbers = memory.at(program.numbers[core::Space::host]);
    make_nans_alike(numbers, program.dtype, program.numel);
    here.copy(memory.gradient, numbers, bytes);
  }
}

void Workspace::settle_residuals() {
  bool is_drained = false;
  for (size_t b = 0; b < drains_.size(); ++b) {
    BucketDrain& drain = drains_[b];
    const Findings& findings = findings_[b];
    const Drained &last = findings.drained, &last_parked = findings.drained_parked;
    if (program_->buckets[b].keeps_residual || last.added) residuals_.swap(b);
    if (last_parked.added) residuals_.parked_share(b) = 1 - last_parked.share;
    const bool ends = drain.is_due && !last.left, parked_ends = drain.is_parked_due && !last_parked.left;
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
  const States &here = states_[core::Space::host], &there = states_[core::Space::cuda];
  return {.pools = {{pools_[core::Space::host].data(), pools_[core::Space::cuda].data()}},
          .gradient = arena.data + program.arena_begin * core::bytes_per_element(program.dtype),
          .residual = program.keeps_residual ? residuals_.current(program, index) : nullptr,
          .residual_next = program.keeps_residual ? residuals_.next(program, index) : nullptr,
          .state = {{here.current(), there.current()}},
          .state_next = {{here.next(), there.next()}},
          .device = platform_.device,
          .size = seat_.size,
          .seed = seed_,
          .step = step_,
          .rows = rows_[index].get()};
}

// --- collectives -----------------------------------------------------------------------------------------------------

comm::Collective Workspace::control(std::span<double> word, int64_t timeout_ms) {
  word_ = word;
  control_.assign(word.begin(), word.end());
  bool was_drained = false;
  for (size_t b = 0; b < drains_.size(); ++b) was_drained = was_drained || drained(static_cast<int32_t>(b));
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
