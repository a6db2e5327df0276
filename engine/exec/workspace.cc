// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/workspace.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "engine/exec/bring_piece.h"
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

Workspace::Workspace(const core::Seat& seat, uint64_t seed, Platform platform, int64_t timeout_ms, bool sums)
    : seat_(seat),
      divisor_(sums ? 1 : seat.size),
      seed_(seed),
      platform_(std::move(platform)),
      memory_({.device = platform_.device, .timeout_ms = timeout_ms}),
      feedback_({.device = platform_.device, .timeout_ms = timeout_ms}) {}

// --- between steps ---------------------------------------------------------------------------------------------------

void Workspace::set_gradients(const core::GradientTable& table, const Arenas& arenas) {
  feedback_.set_gradients(arenas, same_elements(table_, table));
  program_ = nullptr;
  slots_.clear();
  table_ = table;
  arenas_ = arenas;
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

core::Status Workspace::reserve(const Program& program, int64_t memory_budget_bytes) {
  const Residuals::Parts residuals = feedback_.needed_by(program, slots_);
  core::PerSpace<int64_t> bytes = feedback_.bytes_with(residuals);
  for (const core::Space space : core::kSpaces) bytes[space] += memory_.bytes_with(program, space);
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
    // Nothing is kept before all allocations have succeeded.
    ProgramMemory::Growth growth;
    for (const core::Space each : core::kSpaces) {
      space = each;
      memory_.grow(program, each, growth);
    }
    feedback_.allocate(residuals);
    memory_.take(std::move(growth));
  } catch (const std::bad_alloc&) {
    return core::Error{core::Error::Code::io, needs(space) + "the system has not that much"};
  }
  return {};
}

const Program* Workspace::find(int32_t slot) const {
  const auto found = slots_.find(slot);
  return found == slots_.end() ? nullptr : found->second.get();
}

void Workspace::drop(int32_t slot) {
  core::check(program_ == nullptr || find(slot) != program_, "the strategy in force can not be dropped");
  slots_.erase(slot);
  feedback_.free_idle(slots_);
}

void Workspace::run(int32_t slot) {
  const Program* next = find(slot);
  core::check(next != nullptr, "a slot must be prepared before it is run");
  feedback_.run(*next);
  losses_.forget_left();
  if (next == program_) return;
  program_ = next;
  memory_.clear_states();
  const size_t buckets = program_->buckets.size();
  missing_tensors_.assign(buckets, 0);
  is_concluded_.assign(buckets, false);
  findings_.follow(*program_);
  losses_.follow(buckets);
  rows_.follow(*program_, table_);
}

void Workspace::commit(int32_t slot) {
  run(slot);
  feedback_.commit();
}

core::Status Workspace::bring() {
  if (platform_.device == nullptr || program_ == nullptr) return {};
  if (core::Status there = feedback_.bring(); !there) return there;
  return memory_.bring(*program_);
}

Carried Workspace::carried(bool residuals, bool parked) {
  core::check(program_ != nullptr, "what is carried depends on the strategy in force");
  Carried carried{.step = &steps_};
  feedback_.carry({.own = residuals, .parked = parked}, carried);
  losses_.forget_left();  // the caller may write other residuals
  carried.state = memory_.state_at_home(*program_);
  return carried;
}

// --- a step ----------------------------------------------------------------------------------------------------------

void Workspace::begin() {
  core::check(program_ != nullptr, "a strategy must be in force before a step begins");
  for (size_t b = 0; b < missing_tensors_.size(); ++b) missing_tensors_[b] = program_->buckets[b].tensors;
  findings_.begin();
  std::fill(is_concluded_.begin(), is_concluded_.end(), false);
  control_.begin_step();
  counts_ = false;
}

bool Workspace::arrived(int32_t tensor, const Piece& piece, const Arrived& arrived, compress::Queue& queue) {
  const BucketProgram& bucket = this->bucket(piece.bucket);
  if (RowState* const rows = rows_.of(piece.bucket)) {
    rows->arrived = arrived;
  } else {
    const bool scales = scales_arrivals(piece.bucket);
    bring_piece({.bucket = bucket,
                 .tensor = table_.tensors[static_cast<size_t>(tensor)],
                 .piece = piece,
                 .arrived = arrived,
                 .to = gradient_of(piece.bucket) +
                       (piece.arena_begin - bucket.arena_begin) * core::bytes_per_element(bucket.dtype),
                 .factor = 1.0F / static_cast<float>(divisor_),
                 .verdict = scales ? &findings_.verdict(piece.bucket, 0) : nullptr},
                queue);
  }
  return --missing_tensors_[static_cast<size_t>(piece.bucket)] == 0;
}

// Residuals are added to the unscaled gradient, so a bucket that owes some is not scaled as it arrives.
bool Workspace::scales_arrivals(int32_t bucket) const {
  return can_scale_pieces(this->bucket(bucket)) && !feedback_.owes(bucket);
}

bool Workspace::is_balanced(int32_t bucket) const {
  return exec::is_balanced(bucket, steps_) && can_be_balanced(this->bucket(bucket));
}

void Workspace::compute(int32_t bucket, int32_t op, compress::Queue& queue) {
  const BucketProgram& program = this->bucket(bucket);
  const BucketMemory memory = memory_of(bucket);
  const Op& what = this->op(bucket, op);
  const bool is_away = what.space != core::Space::host;
  std::byte* const away = is_away ? report(bucket, what.space) : nullptr;
  Findings& findings = is_away ? *reinterpret_cast<Findings*>(away) : findings_.of(bucket);
  compress::Verdict& verdict =
      is_away ? reinterpret_cast<compress::Verdict*>(away + sizeof(Findings))[op] : findings_.verdict(bucket, op);
  if (is_away && op == 0) queue.fill(away, std::byte{0}, report_bytes(program));
  if (op == 0 && program.lists && feedback_.owes(bucket)) rows_.lay_out(bucket, memory.gradient);
  if (op == program.first_work) begin_bucket(bucket, memory, queue, findings);
  core::Status decoded;
  if (op > 0 || !scales_arrivals(bucket)) decoded = run_op(program, what, memory, queue, verdict);
  if (op == program.sampled_op) sample_error(program, memory, queue, findings.sample, findings.of_sample);
  if (is_balanced(bucket)) check_books(bucket, op, memory, queue, findings);
  const bool is_last = static_cast<size_t>(op) + 1 == program.ops.size();
  if (is_away && (what.is_told || is_last)) {
    queue.copy(report(bucket, core::Space::host), away, report_bytes(program));
  }
  if (!decoded) findings_.reject(bucket, decoded.error());
}

// Works on the memory that the bucket's later operations take for its gradient.
void Workspace::begin_bucket(int32_t bucket, const BucketMemory& memory, compress::Queue& queue, Findings& findings) {
  const BucketProgram& program = this->bucket(bucket);
  if (program.keeps_residual && program.sampled_op >= 0) sample_residual(program, memory, queue, findings.sample);
  if (losses_.knows_left(bucket)) find_begin(program, memory, queue, findings.balance);
  feedback_.drain(bucket, memory, queue, findings);
}

void Workspace::check_books(int32_t bucket, int32_t op, const BucketMemory& memory, compress::Queue& queue,
                            Findings& findings) {
  const BucketProgram& program = this->bucket(bucket);
  if (op == program.sampled_op) find_balance(program, memory, queue, findings.balance, findings.of_sample);
  if (op == last_to_keep(program)) find_left(program, memory, queue, findings.balance);
}

std::byte* Workspace::report(int32_t bucket, core::Space space) const {
  return memory_.pool(space) + program_->reports[space] +
         report_begin(static_cast<size_t>(bucket), this->bucket(bucket).first_op);
}

void Workspace::take_report(int32_t bucket) {
  if (this->bucket(bucket).space != core::Space::host) findings_.take(bucket, report(bucket, core::Space::host));
}

comm::Collective Workspace::collective(int32_t bucket, int32_t op, int64_t timeout_ms) const {
  const core::Space space = this->op(bucket, op).space;
  const auto& what = std::get<Collective>(this->op(bucket, op).work);
  const BucketMemory memory = memory_of(bucket);
  return {
      .kind = what.kind,
      .reduction = what.reduction,
      .type = what.wire,
      .in = memory.at(what.input),
      .out = memory.at(what.output),
      .count = what.count,
      .payload_bytes = what.payload_bytes,
      // The host cannot look at payloads on a device, so all of each payload travels there.
      .used_bytes = what.payload_bytes > 0 && space == core::Space::host ? what.codec->traits().used_bytes : nullptr,
      .among = what.among,
      .root = what.root,
      .timeout_ms = timeout_ms,
      .scratch = what.scratch.bytes > 0 ? memory.pools[space] + what.scratch.offset : nullptr};
}

core::Result<bool> Workspace::conclude(bool finite, compress::Queue& queue) {
  const auto buckets = static_cast<int32_t>(program_->buckets.size());
  counts_ = finite;
  for (int32_t b = 0; b < buckets; ++b) {
    if (bucket(b).due != core::Due::backward) continue;
    take_report(b);
    if (core::Status decoded = findings_.rejection(b, finite); !decoded) return decoded.error();
    counts_ = counts_ && findings_.is_finite(b);
    keep_loss(b);
  }
  for (int32_t b = 0; b < buckets && !counts_; ++b) {
    if (bucket(b).due == core::Due::backward) make_void(b, queue);
  }
  for (int32_t b = 0; b < buckets; ++b) {
    if (rows_.came_dense(b)) rows_.lay_out_average(b, gradient_of(b));
  }
  return counts_;
}

core::Status Workspace::conclude_late(int32_t bucket, compress::Queue& queue) {
  const auto index = static_cast<size_t>(bucket);
  if (is_concluded_[index]) return {};
  is_concluded_[index] = true;
  take_report(bucket);
  if (core::Status decoded = findings_.rejection(bucket, counts_); !decoded) return decoded;
  if (!counts_) {
    make_void(bucket, queue);
  } else if (!findings_.is_finite(bucket)) {
    return core::Error{core::Error::Code::corrupt, "bucket " + std::to_string(bucket) +
                                                       " is not finite, though all ranks were when backward ended"};
  }
  return {};
}

void Workspace::make_void(int32_t bucket, compress::Queue& queue) {
  exec::make_void(this->bucket(bucket), memory_of(bucket), control_.any_drained(), queue);
}

void Workspace::keep_loss(int32_t bucket) { losses_.keep(bucket, findings_.of(bucket), is_balanced(bucket), divisor_); }

void Workspace::settle() {
  const auto buckets = static_cast<int32_t>(program_->buckets.size());
  for (int32_t b = 0; b < buckets; ++b) {
    if (bucket(b).due == core::Due::forward) keep_loss(b);
  }
  if (!counts_) return;
  for (int32_t b = 0; b < buckets; ++b) {
    const bool is_known = is_balanced(b) && last_to_keep(bucket(b)) >= 0;
    losses_.settle(b, is_known ? std::optional(findings_.of(b).balance.left) : std::nullopt);
  }
  feedback_.settle(findings_.all(), slots_);
  memory_.swap_states();
  ++steps_;
}

std::byte* Workspace::gradient_of(int32_t bucket) const {
  const BucketProgram& program = this->bucket(bucket);
  return arenas_[static_cast<size_t>(program.arena)].data +
         program.arena_begin * core::bytes_per_element(program.dtype);
}

BucketMemory Workspace::memory_of(int32_t bucket) const {
  BucketMemory memory{.gradient = gradient_of(bucket),
                      .device = platform_.device,
                      .size = seat_.size,
                      .divisor = divisor_,
                      .seed = seed_,
                      .step = steps_,
                      .rows = rows_.of(bucket)};
  memory_.describe(memory);
  feedback_.describe(bucket, memory);
  return memory;
}

Workspace::Listed Workspace::listed(int32_t tensor) const {
  const std::vector<Piece>& pieces = this->pieces(tensor);
  return pieces.size() == 1 ? rows_.listed(pieces[0].bucket) : Listed();
}

void Workspace::lay_out_average(int32_t tensor) {
  if (listed(tensor).rows == nullptr) return;
  const int32_t bucket = pieces(tensor)[0].bucket;
  if (!rows_.came_dense(bucket)) rows_.lay_out_average(bucket, gradient_of(bucket));
}

// --- collectives -----------------------------------------------------------------------------------------------------

comm::Collective Workspace::control(std::span<double> word, int64_t timeout_ms) {
  return control_.collective(word, findings_.drained(), timeout_ms);
}

core::Error named(uint64_t token, const core::Error& error) {
  const std::string what =
      token == kControlToken ? "the control collective" : "a collective of bucket " + std::to_string(bucket_of(token));
  return {error.code, what + " failed: " + error.message};
}

}  // namespace gradtune::exec
