// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// This file is long because three threads take part in a step, and the state that they share is only safe to change
// together.
#include "engine/exec/executor.h"

#include <algorithm>
#include <utility>

#include "engine/exec/self_test.h"

namespace gradtune::exec {
namespace {

// An upper bound for a step: each operation and bucket has one event, and the step has its begin and its end.
size_t most_events(const Program& program) {
  size_t events = 8;
  for (const BucketProgram& bucket : program.buckets) {
    const bool ends_are_told = bucket.space != core::Space::host;
    events += bucket.ops.size() * (ends_are_told ? 2 : 1) + 2;
  }
  return events;
}

bool uses_host(const Program& program) {
  return std::any_of(program.buckets.begin(), program.buckets.end(), [](const BucketProgram& bucket) {
    return std::any_of(bucket.ops.begin(), bucket.ops.end(),
                       [](const Op& op) { return op.place == core::Place::host && op.kind != Op::Kind::pack; });
  });
}

Device::Stream stream_of(const Op& op, const BucketProgram& bucket) {
  if (op.kind != Op::Kind::copy) return Device::Stream::codec;
  const bool to_host = space_of(op.output, bucket) == core::Space::host;
  return to_host ? Device::Stream::to_host : Device::Stream::to_device;
}

constexpr Device::Stream kStreams[] = {Device::Stream::codec, Device::Stream::to_host, Device::Stream::to_device,
                                       Device::Stream::collectives};

}  // namespace

Executor::Executor(const comm::Groups& groups, const core::Clock& clock, const ExecutorOptions& options,
                   ControlWord control_word)
    : groups_(groups),
      clock_(clock),
      options_(options),
      control_word_(std::move(control_word)),
      workspace_(groups.seat, options.seed,
                 {.scratch =
                      [this](core::Level level, const comm::Collective& collective) {
                        return groups_.at(level).scratch_bytes(collective);
                      },
                  .collectives_in = [this](core::Level level) { return groups_.at(level).space(); },
                  .device = options.device},
                 options.timeout_ms),
      device_queue_(compress::make_serial_queue()) {
  if (options.host_threads > 0) {
    host_queue_ = compress::make_arena_queue(options.host_threads);
  } else if (options.device != nullptr) {  // it puts the arrived gradients in order
    host_queue_ = compress::make_serial_queue();
  }
  start_threads(64);
}

Executor::~Executor() { stop(); }

void Executor::stop() {
  if (std::exchange(stopped_, true)) return;
  if (done_ != Done::all) groups_.abort();
  fail({core::Error::Code::lost, "the executor was stopped"});
  end_threads();
  if (options_.device == nullptr) return;
  // Queued work of the device uses memory that is freed next.
  for (const Device::Stream stream : kStreams) {
    const core::Fence end = options_.device->queue(stream).mark();
    if (!end.wait(options_.most_end_ms) && !end.passed()) {
      core::end_process("work on the device", options_.most_end_ms);
    }
  }
}

void Executor::start_threads(size_t most_events) {
  events_ = std::make_unique<EventRing<Event>>(most_events);
  starts_ = std::make_unique<EventRing<Start>>(most_events);
  device_ops_ = std::make_unique<EventRing<Event>>(most_events);
  host_ops_ = std::make_unique<EventRing<Event>>(most_events);
  communication_thread_ = core::BoundedThread("the executor's communication thread", [this] { communicate(); });
  if (!host_queue_) return;
  try {
    host_thread_ = core::BoundedThread("the executor's host thread", [this] { work_on_host(); });
  } catch (...) {  // the other thread uses members that are about to be destroyed
    end_threads();
    throw;
  }
}

void Executor::enter_device() {
  if (options_.device != nullptr) guarded("on a thread's way to the device", [&] { options_.device->enter(); });
}

void Executor::end_threads() {
  if (communication_thread_.joinable()) {
    post({.kind = Event::Kind::stop});
    communication_thread_.join(options_.most_end_ms);
  }
  if (host_thread_.joinable()) {
    host_ops_->push({.kind = Event::Kind::stop});
    host_bell_.ring();
    host_thread_.join(options_.most_end_ms);
  }
}

// --- between steps ---------------------------------------------------------------------------------------------------

// A programmer's error is thrown before anything has changed. Any other exception leaves the executor unusable.
template <typename Change>
void Executor::change(const Change& change) {
  if (failed_ || !drain()) return;
  try {
    change();
  } catch (const core::ProgramError&) {
    throw;
  } catch (...) {
    fail(core::caught_error("between steps"));
  }
}

void Executor::set_gradients(const core::GradientTable& table, const Arenas& arenas) {
  change([&] { workspace_.set_gradients(table, arenas); });
}

void Executor::drop(int32_t slot) {
  change([&] { workspace_.drop(slot); });
}

Carried Executor::carried(bool residuals, bool parked) {
  drain().value();
  return workspace_.carried(residuals, parked);
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

core::Status Executor::prepare_slot(int32_t slot, const core::Strategy& strategy) {
  auto compiled = workspace_.compile(slot, strategy);
  if (!compiled) return compiled.error();
  const Program& program = *compiled.value();
  if (!host_queue_ && uses_host(program)) {
    return core::Error{core::Error::Code::invalid, "placement host needs at least one host thread, there are none"};
  }
  for (const auto& codec : program.codecs) {
    if (core::Status status = self_test(*codec, *device_queue_, {}, options_.timeout_ms); !status) return status;
  }
  for (const auto& codec : program.device_codecs) {
    Device& device = *options_.device;
    const SelfTestMemory memory{.device = &device.memory(), .pinned = &device.pinned()};
    if (core::Status status = self_test(*codec, device.current(), memory, options_.timeout_ms); !status) return status;
  }
  const size_t events = most_events(program);
  if (core::Status status = workspace_.add(slot, std::move(compiled.value()), options_.memory_budget_bytes); !status)
    return status;
  if (events > events_->capacity()) {
    // Nothing is under way between steps, so the threads can end and start again with larger rings.
    end_threads();
    if (!guarded("threads with room for more events", [&] { start_threads(events); })) return failure();
  }
  return {};
}

void Executor::run(int32_t slot) {
  change([&] {
    workspace_.run(slot);
    begin_program();
  });
}

void Executor::commit(int32_t slot) {
  change([&] {
    workspace_.commit(slot);
    begin_program();
  });
}

void Executor::begin_program() {
  const Program& program = *workspace_.program();
  op_times_.assign(static_cast<size_t>(program.ops), {});
  op_fences_.assign(static_cast<size_t>(program.ops), {});
  ready_.assign(program.buckets.size(), {});
  arrived_ns_.assign(program.buckets.size(), 0);
  fences_.assign(program.buckets.size(), {});
  late_done_ = std::vector<std::atomic<bool>>(program.buckets.size());
  may_be_left_.clear();
  for (size_t b = 0; b < program.buckets.size(); ++b) {
    may_be_left_.push_back(goes_on_alone(program, static_cast<int32_t>(b)) ? 1 : 0);
  }
}

bool Executor::keeps_residual(int32_t tensor) const {
  const std::vector<Piece>& pieces = workspace_.pieces(tensor);
  return std::any_of(pieces.begin(), pieces.end(),
                     [&](const Piece& piece) { return workspace_.bucket(piece.bucket).keeps_residual; });
}

bool Executor::drained(int32_t tensor) const {
  const std::vector<Piece>& pieces = workspace_.pieces(tensor);
  return std::any_of(pieces.begin(), pieces.end(),
                     [&](const Piece& piece) { return workspace_.drained(piece.bucket); });
}

// --- a step, on the thread that runs backward ------------------------------------------------------------------------

core::Status Executor::begin_step() {
  if (core::Status drained = drain(); !drained) return drained;
  if (core::Status there = workspace_.bring(); !there) {
    fail(there.error());
    return failure();
  }
  workspace_.begin();
  times_ = {};
  ++step_;
  phase_ = Phase::running;
  done_ = Done::nothing;
  for (std::atomic<bool>& late : late_done_) late = false;
  std::ranges::fill(arrived_ns_, 0);
  missing_buckets_ = workspace_.program()->buckets.size();
  events_->push({.kind = Event::Kind::begin});
  if (missing_buckets_ == 0) communication_bell_.ring();  // otherwise there is nothing to do before a bucket is ready
  return {};
}

bool Executor::tensor_ready(int32_t tensor, const Arrived& arrived) {
  const bool is_elsewhere = arrived.kind != Arrived::Kind::in_place;
  bool is_done_with = true;
  for (const Piece& piece : workspace_.pieces(tensor)) {
    if (failed_) return false;
    const bool scales = workspace_.scales_arrivals(piece.bucket);
    const int64_t start_ns = is_elsewhere || scales ? clock_.now_ns() : 0;
    const bool away = is_away(piece.bucket);
    compress::Queue& queue = away ? options_.device->current() : *device_queue_;
    bool complete = false;
    const bool is_there = guarded("bringing a gradient to its place",
                                  [&] { complete = workspace_.arrived(tensor, piece, arrived, queue); });
    if (!is_there) return false;
    is_done_with = is_done_with && !away && !workspace_.bucket(piece.bucket).lists;
    if (is_elsewhere || scales) {
      const int64_t took_ns = clock_.now_ns() - start_ns;
      times_.encode_ms += static_cast<double>(took_ns) * 1e-6;
      if (scales) arrived_ns_[static_cast<size_t>(piece.bucket)] += took_ns;
    }
    if (!complete) continue;
    --missing_buckets_;
    if (away) {
      ready_[static_cast<size_t>(piece.bucket)] = queue.mark();
      post({.kind = Event::Kind::bucket_ready, .bucket = piece.bucket, .op = 0});
      continue;
    }
    const int32_t leading = leading_device_ops(workspace_.bucket(piece.bucket));
    for (int32_t op = 0; op < leading; ++op) {
      if (!run_on_device(piece.bucket, op)) return false;
    }
    post_own({.kind = Event::Kind::bucket_ready, .bucket = piece.bucket, .op = leading});
  }
  drain_device_ops();
  return is_done_with;
}

// Meanwhile this thread does the device operations that others left to it. It also handles events, unless gradients
// are on a device, because queueing work there may take long.
template <typename Condition>
core::Status Executor::wait_until(const Condition& holds) {
  const bool handles = options_.device == nullptr;
  if (handles) handler_bell_ = &device_bell_;
  // A collective that exceeds its deadline reports that itself; this limit is for events that should not happen.
  const int64_t limit_ms = comm::completion_limit_ms(options_.timeout_ms);
  int64_t progress = progress_, idle_ms = 0;
  while (!holds() && !failed_) {
    if (drain_device_ops()) continue;
    const int64_t start_ns = clock_.now_ns();
    if (handles) handle_events();
    const bool rung = device_bell_.wait_ms(std::min(limit_ms, comm::kAlarmPeriodMs));
    idle_ms = rung || progress != progress_ ? 0 : idle_ms + comm::kAlarmPeriodMs;
    progress = progress_;
    if (idle_ms >= limit_ms && idle_ms < limit_ms + comm::kAlarmPeriodMs && options_.device != nullptr) {
      post({.kind = Event::Kind::hang});  // the communication thread knows what it queued
    } else if (idle_ms >= limit_ms) {
      fail({core::Error::Code::timeout, "nothing made progress for " + std::to_string(limit_ms) + " ms"});
    } else if (!rung && options_.alarm) {
      guarded("the alarm", [&] {
        if (core::Status status = options_.alarm(); !status) fail(status.error());
      });
    }
    // The alarm uses the same link that the step waits for, so it takes as long as the traffic queued there.
    times_.wait_ms += static_cast<double>(clock_.now_ns() - start_ns) * 1e-6;
  }
  if (handles) {
    handler_bell_ = &communication_bell_;
    handle_events();  // events from threads that saw the other bell
  }
  if (failed_) return failure();  // other threads may still write the times of operations
  return {};
}

core::Status Executor::health() const {
  for (const comm::Communicator* group : {&groups_.flat, groups_.intra, groups_.inter}) {
    if (group == nullptr) continue;
    if (core::Status well = group->health(); !well) return well;
  }
  return {};
}

core::Status Executor::await_fences() const {
  for (size_t b = 0; b < fences_.size(); ++b) {
    if (workspace_.bucket(static_cast<int32_t>(b)).due != core::Due::backward) continue;
    if (!fences_[b].wait(options_.timeout_ms)) return hang();
  }
  return health();
}

void Executor::read_times(core::Due due) {
  const Program& program = *workspace_.program();
  exec::read_times(program, due, op_fences_, op_times_);
  times_.comm_ms += comm_ms(program, due, op_times_);
}

core::Status Executor::finish_backward() {
  if (failed_) return failure();
  core::check(phase_ == Phase::running, "a backward pass is finished once in a step");
  core::Status done = wait_until([&] { return done_ >= Done::backward; });
  if (done) done = await_fences();
  if (!done) {
    fail(done.error());
    return failure();
  }
  phase_ = Phase::averaged;
  read_times(core::Due::backward);
  return {};
}

core::Result<bool> Executor::conclude(bool finite) {
  if (failed_) return failure().error();
  core::check(phase_ == Phase::averaged, "a step is concluded once, when its backward pass is finished");
  core::Result<bool> counts = false;
  guarded("concluding a step", [&] { counts = workspace_.conclude(finite, *device_queue_); });
  if (!counts) fail(counts.error());
  if (failed_) return failure().error();
  phase_ = Phase::concluded;
  return counts;
}

core::Status Executor::await(int32_t bucket) {
  if (failed_) return failure();
  if (phase_ == Phase::settled || workspace_.bucket(bucket).due == core::Due::backward) return {};
  core::check(phase_ == Phase::concluded, "late buckets are waited for once the step's control word was told");
  const auto index = static_cast<size_t>(bucket);
  core::Status done = wait_until([&] { return late_done_[index].load(); });
  if (done && !fences_[index].wait(options_.timeout_ms)) done = hang();
  if (done) done = health();
  if (done) guarded("a late bucket", [&] { done = workspace_.conclude_late(bucket, *device_queue_); });
  if (!done) fail(done.error());
  return failed_ ? failure() : core::Status();
}

core::Status Executor::drain() {
  if (failed_) return failure();
  if (phase_ == Phase::settled) return {};
  core::check(phase_ == Phase::concluded, "a step ends when its control word was told");
  if (core::Status done = wait_until([&] { return done_ == Done::all; }); !done) return done;
  for (size_t b = 0; b < fences_.size(); ++b) {
    if (core::Status done = await(static_cast<int32_t>(b)); !done) return done;
  }
  read_times(core::Due::forward);
  guarded("settling a step", [&] { workspace_.settle(); });
  phase_ = Phase::settled;
  return failed_ ? failure() : core::Status();
}

bool Executor::drain_device_ops() {
  bool any = false;
  Event event;
  while (!failed_ && device_ops_->pop(event)) {
    if (run_on_device(event.bucket, event.op)) post_own(event);
    any = true;
  }
  return any;
}

// Runs the operation after the bucket's earlier work, on whichever queue that was.
void Executor::compute(int32_t bucket, int32_t op, compress::Queue& queue) {
  OpTime& time = time_of(bucket, op);
  core::Fence& fence = fences_[static_cast<size_t>(bucket)];
  time.begin_ns = clock_.now_ns();
  queue.after(fence, options_.timeout_ms).value();
  workspace_.compute(bucket, op, queue);
  fence = queue.mark();
  time.end_ns = clock_.now_ns();
}

bool Executor::run_on_device(int32_t bucket, int32_t op) {
  if (!guarded("on the thread that runs backward", [&] { compute(bucket, op, *device_queue_); })) return false;
  OpTime& time = time_of(bucket, op);
  const double ms = static_cast<double>(time.end_ns - time.begin_ns) * 1e-6;
  const Op::Kind kind = workspace_.op(bucket, op).kind;
  (kind == Op::Kind::decode || kind == Op::Kind::store ? times_.decode_ms : times_.encode_ms) += ms;
  if (op == 0) time.begin_ns -= arrived_ns_[static_cast<size_t>(bucket)];
  return true;
}

// --- the communication thread, and events ----------------------------------------------------------------------------

void Executor::communicate() {
  enter_device();
  do {
    communication_bell_.wait_ms(1000);
    Start what;
    while (starts_->pop(what)) {
      if (failed_) continue;
      if (!guarded("on the communication thread", [&] { start(what); })) groups_.abort();
    }
  } while (handle_events());
}

void Executor::start(const Start& what) {
  if (what.bucket < 0) {
    const std::span<double> word = control_word_(what.finite);
    return groups_.control.start(workspace_.control(word, options_.timeout_ms), *this, kControlToken);
  }
  comm::Communicator& group = groups_.at(workspace_.op(what.bucket, what.op).level);
  comm::Collective collective = workspace_.collective(what.bucket, what.op, options_.timeout_ms);
  collective.after = fences_[static_cast<size_t>(what.bucket)];
  time_of(what.bucket, what.op) = {.begin_ns = clock_.now_ns(), .bytes = comm::link_bytes(collective, group.size())};
  group.start(collective, *this, token_of(what.bucket, what.op));
}

// Returns false if the communication thread is to end.
bool Executor::handle_events() {
  bool goes_on = true;
  turn_.take([&] {
    Event event;
    while (events_->pop(event)) {
      goes_on = goes_on && event.kind != Event::Kind::stop;
      if (failed_ || !goes_on) continue;
      if (!guarded("while handling what happened", [&] { handle(event); })) groups_.abort();
    }
  });
  return goes_on;
}

void Executor::handle(const Event& event) {
  ++progress_;
  actions_.clear();
  switch (event.kind) {
    case Event::Kind::begin:
      finite_ = true;
      actions_.reserve(most_events(*workspace_.program()));  // so that later steps allocate nothing
      scheduler_.begin(*workspace_.program());
      scheduler_.start(actions_);
      break;
    case Event::Kind::bucket_ready:
      if (!is_away(event.bucket)) look_at(event.bucket, 0, event.op);
      scheduler_.bucket_ready(event.bucket, event.op, actions_);
      break;
    case Event::Kind::op_done:
      if (has_ended(event)) {
        workspace_.take_report(event.bucket);
        look_at(event.bucket, is_away(event.bucket) ? 0 : event.op, event.op + 1);
      }
      scheduler_.op_done(event.bucket, event.op, actions_);
      break;
    case Event::Kind::op_ended: scheduler_.op_ended(event.bucket, event.op, actions_); break;
    case Event::Kind::control_done: scheduler_.control_done(actions_); break;
    case Event::Kind::hang: fail(hang()); break;
    case Event::Kind::stop: break;
  }
  for (size_t i = 0; i < actions_.size(); ++i) act(Action(actions_[i]));  // an action may append more actions
}

// Returns false for a collective on a device: it is done when it is queued, and the work before it may still be in
// progress.
bool Executor::has_ended(const Event& done) const {
  const Op& op = workspace_.op(done.bucket, done.op);
  return op.kind != Op::Kind::collective || op.space == core::Space::host;
}

// Queues an operation on the device and waits for nothing. The next operation may be queued at once, unless it is on
// the host.
void Executor::enqueue(int32_t bucket, int32_t op) {
  Device& device = *options_.device;
  const Op& what = workspace_.op(bucket, op);
  compress::Queue& queue = device.queue(stream_of(what, workspace_.bucket(bucket)));
  core::Fence& fence = fences_[static_cast<size_t>(bucket)];
  OpFences& fences = op_fences_[static_cast<size_t>(workspace_.bucket(bucket).first_op + op)];
  if (op == 0) queue.after(ready_[static_cast<size_t>(bucket)], options_.timeout_ms).value();
  queue.after(fence, options_.timeout_ms).value();
  fences.begin = queue.mark();
  workspace_.compute(bucket, op, queue);
  // This precedes the mark, because after the mark has passed no listener may be told any more.
  if (what.is_told || what.frees) device.notify(queue, *this, token_of(bucket, op));
  fence = fences.end = queue.mark();
  if (!what.is_told) scheduler_.op_done(bucket, op, actions_);
}

core::Error Executor::hang() const {
  const std::string who = "rank " + std::to_string(groups_.seat.rank) + ", step " + std::to_string(step_) + ": ";
  if (const auto error = first_not_ended(*workspace_.program(), op_fences_, options_.timeout_ms)) {
    return {error->code, who + error->message};
  }
  return {core::Error::Code::timeout, who + "nothing made progress for " + std::to_string(options_.timeout_ms) + " ms"};
}

// Notes the verdicts of these operations, which are done.
void Executor::look_at(int32_t bucket, int32_t first_op, int32_t last_op) {
  for (int32_t op = first_op; op < last_op; ++op) finite_ = finite_ && workspace_.verdict(bucket, op).nonfinite == 0;
}

void Executor::act(const Action& action) {
  switch (action.kind) {
    case Action::Kind::start:
      starts_->push({.bucket = action.bucket, .op = action.op});
      communication_bell_.ring();
      break;
    case Action::Kind::control:
      starts_->push({.finite = finite_});
      communication_bell_.ring();
      break;
    case Action::Kind::run_device:
      if (is_away(action.bucket)) return enqueue(action.bucket, action.op);
      device_ops_->push({.kind = Event::Kind::op_done, .bucket = action.bucket, .op = action.op});
      device_bell_.ring();
      break;
    case Action::Kind::run_host:
      host_ops_->push({.kind = Event::Kind::op_done, .bucket = action.bucket, .op = action.op});
      host_bell_.ring();
      break;
    case Action::Kind::late_done:
      late_done_[static_cast<size_t>(action.bucket)] = true;
      device_bell_.ring();
      break;
    case Action::Kind::backward_done:
      done_ = Done::backward;
      device_bell_.ring();
      break;
    case Action::Kind::finished:
      done_ = Done::all;
      device_bell_.ring();
      break;
  }
}

// --- the host thread -------------------------------------------------------------------------------------------------

void Executor::work_on_host() {
  enter_device();
  for (;;) {
    host_bell_.wait_ms(1000);
    Event event;
    while (host_ops_->pop(event)) {
      if (event.kind == Event::Kind::stop) return;
      if (failed_) continue;
      if (!guarded("on the host thread", [&] { run_on_host(event); })) groups_.abort();
    }
  }
}

void Executor::run_on_host(const Event& event) {
  compute(event.bucket, event.op, *host_queue_);
  post(event);
}

// --- from any thread -------------------------------------------------------------------------------------------------

// Does not abort if this throws, because this may be a thread of the communicator itself.
void Executor::complete(uint64_t token, core::Status status, core::Fence done) {
  guarded("in a completion", [&] {
    if (!status) {
      fail(named(token, status.error()));
    } else if (token == kControlToken) {
      workspace_.control_done();
      post({.kind = Event::Kind::control_done});
    } else {
      time_of(bucket_of(token), op_of(token)).end_ns = clock_.now_ns();
      const int32_t bucket = bucket_of(token), op = op_of(token);
      if (workspace_.op(bucket, op).space != core::Space::host) {  // only queued, on the communication thread
        op_fences_[static_cast<size_t>(workspace_.bucket(bucket).first_op + op)] = {
            .begin = fences_[static_cast<size_t>(bucket)], .end = done};
      }
      fences_[static_cast<size_t>(bucket)] = done;
      // On a device collectives follow each other, so the next one may use the memory of this one.
      if (workspace_.op(bucket, op).frees) post({.kind = Event::Kind::op_ended, .bucket = bucket, .op = op});
      post({.kind = Event::Kind::op_done, .bucket = bucket, .op = op});
    }
  });
}

void Executor::ended(uint64_t token) {
  const int32_t bucket = bucket_of(token), op = op_of(token);
  const Op& what = workspace_.op(bucket, op);
  if (what.frees) post({.kind = Event::Kind::op_ended, .bucket = bucket, .op = op});
  if (what.is_told) post({.kind = Event::Kind::op_done, .bucket = bucket, .op = op});
}

void Executor::post(const Event& event) {
  events_->push(event);
  if (!turn_.is_seen()) handler_bell_.load()->ring();
}

void Executor::post_own(const Event& event) {
  if (missing_buckets_ > 0 || options_.device != nullptr) return post(event);
  events_->push(event);
  handle_events();
}

void Executor::fail(core::Error error) noexcept {
  {
    const std::lock_guard lock(error_mutex_);
    if (failed_) return;
    error_ = std::move(error);
    failed_ = true;
  }
  device_bell_.ring();
}

template <typename Body>
bool Executor::guarded(const char* where, const Body& body) noexcept {
  try {
    body();
    return true;
  } catch (...) {
    fail(core::caught_error(where));
    return false;
  }
}

core::Status Executor::failure() {
  // The communicators are aborted here and not where the failure was seen, which may be on a thread of the
  // communicator itself. After stop() there are none left.
  if (!stopped_) groups_.abort();
  const std::lock_guard lock(error_mutex_);
  return error_;
}

}  // namespace gradtune::exec
