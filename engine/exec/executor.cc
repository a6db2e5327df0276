// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/executor.h"

#include <algorithm>
#include <utility>

#include "engine/exec/self_test.h"

namespace gradtune::exec {
namespace {

bool uses_host(const Program& program) {
  return std::any_of(program.buckets.begin(), program.buckets.end(), [](const BucketProgram& bucket) {
    return std::any_of(bucket.ops.begin(), bucket.ops.end(),
                       [](const Op& op) { return op.place == core::Place::host && !op.is<Pack>(); });
  });
}

Platform platform_of(const comm::Groups& groups, Device* device) {
  return {.scratch = [groups](core::Level level,
                              const comm::Collective& each) { return groups.at(level).scratch_bytes(each); },
          .collectives_in = [groups](core::Level level) { return groups.at(level).space(); },
          .device = device};
}

constexpr Device::Stream kStreams[] = {Device::Stream::codec, Device::Stream::to_host, Device::Stream::to_device,
                                       Device::Stream::collectives};

}  // namespace

Executor::Executor(const comm::Groups& groups, const core::Clock& clock, const ExecutorOptions& options,
                   ControlWord control_word)
    : shared_{.groups = groups,
              .clock = clock,
              .options = options,
              .workspace = Workspace(groups.seat, options.seed, platform_of(groups, options.device), options.timeout_ms,
                                     options.sums)},
      communication_(shared_, handler_, std::move(control_word)) {
  start_threads(64);
}

Executor::~Executor() { stop(); }

void Executor::stop() {
  if (std::exchange(is_stopped_, true)) return;
  if (shared_.progress.done != Progress::Done::all) shared_.groups.abort();
  shared_.failure.note({core::Error::Code::lost, "the executor was stopped"});
  end_threads();
  const ExecutorOptions& options = shared_.options;
  if (options.device == nullptr) return;
  // Queued work of the device uses memory that is freed next.
  for (const Device::Stream stream : kStreams) {
    const core::Fence end = options.device->queue(stream).mark();
    if (!end.wait(options.most_end_ms) && !end.passed()) core::end_process("work on the device", options.most_end_ms);
  }
}

void Executor::start_threads(size_t most_events) {
  shared_.mail.make_room(most_events);
  communication_.start();
  host_.start();
}

void Executor::end_threads() {
  communication_.stop();
  host_.stop();
}

// --- between steps ---------------------------------------------------------------------------------------------------

// A programmer's error is thrown before anything has changed. Any other exception leaves the executor unusable.
template <typename Change>
void Executor::change(const Change& change) {
  if (has_failed() || !drain()) return;
  try {
    change();
  } catch (const core::ProgramError&) {
    throw;
  } catch (...) {
    shared_.failure.note(core::caught_error("between steps"));
  }
}

void Executor::set_gradients(const core::GradientTable& table, const Arenas& arenas) {
  change([&] { shared_.workspace.set_gradients(table, arenas); });
}

void Executor::drop(int32_t slot) {
  change([&] { shared_.workspace.drop(slot); });
}

Carried Executor::carried(bool residuals, bool parked) {
  drain().value();
  return shared_.workspace.carried(residuals, parked);
}

core::Status Executor::prepare(int32_t slot, const core::Strategy& strategy) {
  if (core::Status drained = drain(); !drained) return drained;
  try {
    return prepare_slot(slot, strategy);
  } catch (const core::ProgramError&) {
    throw;
  } catch (...) {
    return core::caught_error("preparing a strategy");
  }
}

core::Result<std::unique_ptr<Program>> Executor::compile(const core::Strategy& strategy,
                                                         const core::GradientTable& table) const {
  return exec::compile(strategy, table, shared_.groups.seat, platform_of(shared_.groups, shared_.options.device));
}

core::Status Executor::prepare_slot(int32_t slot, const core::Strategy& strategy) {
  const ExecutorOptions& options = shared_.options;
  auto compiled = shared_.workspace.compile(slot, strategy);
  if (!compiled) return compiled.error();
  const Program& program = *compiled.value();
  if (!host_.exists() && uses_host(program)) {
    return core::Error{core::Error::Code::invalid, "placement host needs at least one host thread, there are none"};
  }
  for (const auto& codec : program.codecs) {
    if (core::Status status = self_test(*codec, training_.queue(), {}, options.timeout_ms); !status) return status;
  }
  for (const auto& codec : program.device_codecs) {
    Device& device = *options.device;
    const SelfTestMemory memory{.device = &device.memory(), .pinned = &device.pinned()};
    if (core::Status status = self_test(*codec, device.current(), memory, options.timeout_ms); !status) return status;
  }
  const size_t events = most_events(program);
  core::Status added = shared_.workspace.add(slot, std::move(compiled.value()), options.memory_budget_bytes);
  if (!added) return added;
  if (events > shared_.mail.events.room()) {
    // Nothing is under way between steps, so the threads can end and start again with larger rings.
    end_threads();
    if (!shared_.failure.guards("threads with room for more events", [&] { start_threads(events); })) return failure();
  }
  return {};
}

void Executor::run(int32_t slot) {
  change([&] {
    shared_.workspace.run(slot);
    begin_program();
  });
}

void Executor::commit(int32_t slot) {
  change([&] {
    shared_.workspace.commit(slot);
    begin_program();
  });
}

void Executor::begin_program() {
  const Program& program = *shared_.workspace.program();
  shared_.trace.follow(program);
  shared_.progress.begin_program(program);
  training_.begin_program(program);
  may_be_left_.clear();
  for (size_t b = 0; b < program.buckets.size(); ++b) {
    may_be_left_.push_back(goes_on_alone(program, static_cast<int32_t>(b)) ? 1 : 0);
  }
}

bool Executor::keeps_residual(int32_t tensor) const {
  const Workspace& workspace = shared_.workspace;
  const std::vector<Piece>& pieces = workspace.pieces(tensor);
  return std::any_of(pieces.begin(), pieces.end(),
                     [&](const Piece& piece) { return workspace.bucket(piece.bucket).keeps_residual; });
}

bool Executor::drained(int32_t tensor) const {
  const Workspace& workspace = shared_.workspace;
  const std::vector<Piece>& pieces = workspace.pieces(tensor);
  return std::any_of(pieces.begin(), pieces.end(), [&](const Piece& piece) { return workspace.drained(piece.bucket); });
}

// --- a step, on the thread that runs backward ------------------------------------------------------------------------

core::Status Executor::begin_step() {
  if (core::Status drained = drain(); !drained) return drained;
  if (core::Status there = shared_.workspace.bring(); !there) return failed_with(there.error());
  shared_.workspace.begin();
  shared_.progress.begin_step();
  phase_ = Phase::running;
  training_.begin_step();
  return {};
}

bool Executor::tensor_ready(int32_t tensor, const Arrived& arrived) { return training_.tensor_ready(tensor, arrived); }

core::Status Executor::health() const {
  const comm::Groups& groups = shared_.groups;
  for (const comm::Communicator* group : {&groups.flat, groups.intra, groups.inter}) {
    if (group == nullptr) continue;
    if (core::Status well = group->health(); !well) return well;
  }
  return {};
}

core::Status Executor::await_fences() {
  const std::vector<BucketProgram>& buckets = program().buckets;
  for (size_t b = 0; b < buckets.size(); ++b) {
    if (buckets[b].due != core::Due::backward) continue;
    if (!shared_.trace.end(static_cast<int32_t>(b)).wait(shared_.options.timeout_ms)) return shared_.hang();
  }
  return health();
}

core::Status Executor::finish_backward() {
  if (has_failed()) return failure();
  core::check(phase_ == Phase::running, "a backward pass is finished once in a step");
  if (!training_.wait_until([&] { return shared_.progress.done >= Progress::Done::backward; })) return failure();
  if (core::Status done = await_fences(); !done) return failed_with(done.error());
  phase_ = Phase::averaged;
  training_.read_times(core::Due::backward);
  return {};
}

core::Result<bool> Executor::conclude(bool finite) {
  if (has_failed()) return failure().error();
  core::check(phase_ == Phase::averaged, "a step is concluded once, when its backward pass is finished");
  core::Result<bool> counts = false;
  shared_.failure.guards("concluding a step", [&] { counts = shared_.workspace.conclude(finite, training_.queue()); });
  if (!counts) shared_.failure.note(counts.error());
  if (has_failed()) return failure().error();
  phase_ = Phase::concluded;
  return counts;
}

core::Status Executor::await(int32_t bucket) {
  if (has_failed()) return failure();
  if (phase_ == Phase::settled || shared_.workspace.bucket(bucket).due == core::Due::backward) return {};
  core::check(phase_ == Phase::concluded, "late buckets are waited for once the step's control word was told");
  const std::atomic<bool>& is_done = shared_.progress.late_done[static_cast<size_t>(bucket)];
  if (!training_.wait_until([&] { return is_done.load(); })) return failure();
  core::Status done;
  if (!shared_.trace.end(bucket).wait(shared_.options.timeout_ms)) done = shared_.hang();
  if (done) done = health();
  if (done) {
    shared_.failure.guards("a late bucket", [&] { done = shared_.workspace.conclude_late(bucket, training_.queue()); });
  }
  if (!done) return failed_with(done.error());
  return has_failed() ? failure() : core::Status();
}

core::Status Executor::drain() {
  if (has_failed()) return failure();
  if (phase_ == Phase::settled) return {};
  core::check(phase_ == Phase::concluded, "a step ends when its control word was told");
  if (!training_.wait_until([&] { return shared_.progress.done == Progress::Done::all; })) return failure();
  const size_t buckets = program().buckets.size();
  for (size_t b = 0; b < buckets; ++b) {
    if (core::Status done = await(static_cast<int32_t>(b)); !done) return done;
  }
  training_.read_times(core::Due::forward);
  shared_.failure.guards("settling a step", [&] { shared_.workspace.settle(); });
  phase_ = Phase::settled;
  return has_failed() ? failure() : core::Status();
}

core::Status Executor::failed_with(core::Error error) {
  shared_.failure.note(std::move(error));
  return failure();
}

core::Status Executor::failure() {
  // The communicators are aborted here and not where the failure was seen, which may be on a thread of the
  // communicator itself. After stop() there are none left.
  if (!is_stopped_) shared_.groups.abort();
  return shared_.failure.error();
}

}  // namespace gradtune::exec
