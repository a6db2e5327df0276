// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/executor.h"

#include <algorithm>
#include <utility>

#include "engine/compress/calls.h"

namespace gradtune::exec {
namespace {

// More than a step can have: one event per operation and bucket, its begin and its end.
size_t most_events(const Program& program) {
  size_t events = 8;
  for (const BucketProgram& bucket : program.buckets) events += bucket.ops.size() + 2;
  return events;
}

bool uses_host(const Program& program) {
  return std::any_of(program.buckets.begin(), program.buckets.end(), [](const BucketProgram& bucket) {
    return std::any_of(bucket.ops.begin(), bucket.ops.end(),
                       [](const Op& op) { return op.place == core::Place::host; });
  });
}

}  // namespace

Executor::Executor(const comm::Groups& groups, const core::Clock& clock, const ExecutorOptions& options,
                   ControlWord control_word)
    : groups_(groups),
      clock_(clock),
      options_(options),
      control_word_(std::move(control_word)),
      workspace_(groups.seat, options.seed,
                 [this](core::Level level, const comm::Collective& collective) {
                   return groups_.at(level).scratch_bytes(collective);
                 }),
      device_queue_(compress::make_serial_queue()) {
  if (options.host_threads > 0) host_queue_ = compress::make_arena_queue(options.host_threads);
  start_threads(64);
}

Executor::~Executor() { stop(); }

void Executor::stop() {
  if (std::exchange(stopped_, true)) return;
  if (done_ != Done::all) groups_.abort();
  fail({core::Error::Code::lost, "the executor was stopped"});
  end_threads();
}

void Executor::start_threads(size_t most_events) {
  events_ = std::make_unique<EventRing<Event>>(most_events);
  device_ops_ = std::make_unique<EventRing<Event>>(most_events);
  host_ops_ = std::make_unique<EventRing<Event>>(most_events);
  communication_thread_ = core::BoundedThread("the executor's communication thread", [this] { communicate(); });
  if (!host_queue_) return;
  try {
    host_thread_ = core::BoundedThread("the executor's host thread", [this] { work_on_host(); });
  } catch (...) {  // the other one uses what is about to go
    end_threads();
    throw;
  }
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

// A programmer's error is found before anything has changed. Whatever else is thrown leaves nothing to go on with.
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
  if (host_queue_ == nullptr && uses_host(program)) {
    return core::Error{core::Error::Code::invalid, "placement host needs at least one host thread, there are none"};
  }
  if (core::Status status = self_test(program); !status) return status;
  const size_t events = most_events(program);
  if (core::Status status = workspace_.add(slot, std::move(compiled.value()), options_.memory_budget_bytes); !status)
    return status;
  if (events > events_->capacity()) {
    // Nothing is under way between steps, so the threads can go, and come back with larger rings.
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
  fences_.assign(program.buckets.size(), {});
  late_done_ = std::vector<std::atomic<bool>>(program.buckets.size());
}

core::Status Executor::self_test(const Program& program) const {
  constexpr int64_t kElements = 1000;
  std::vector<float> input(kElements), output(kElements);
  for (int64_t i = 0; i < kElements; ++i) input[static_cast<size_t>(i)] = static_cast<float>(i % 17 - 8) * 0.125F;
  const core::Matrix matrix{0, 40, 20};
  const core::Extent extent{kElements, {&matrix, 1}};
  for (const auto& codec : program.codecs) {
    const AlignedBytes scratch(codec->scratch_bytes(extent)), between(codec->round_bytes(extent));
    bool finite = true;
    core::Status decoded;
    for (int round = 0; round < codec->traits().rounds && decoded; ++round) {
      const compress::Work work{.matrices = extent.matrices, .round = round, .round_memory = between.data()};
      const AlignedBytes payload(codec->payload_bytes(extent, round));
      const std::span<std::byte> bytes{payload.data(), static_cast<size_t>(payload.bytes())};
      const compress::Encode job{.gradient = input,
                                 .work = work,
                                 .payload = bytes,
                                 .scratch = {scratch.data(), static_cast<size_t>(scratch.bytes())}};
      finite = compress::encode_now(*codec, job, *device_queue_) && finite;
      const std::span<const std::byte> payloads[] = {bytes};
      decoded = compress::decode_now(*codec, {.payloads = payloads, .out = output, .work = work}, *device_queue_);
    }
    if (!finite || !decoded) {
      return core::Error{core::Error::Code::corrupt,
                         "compressor " + core::to_string(codec->spec()) + " failed its self-test: " +
                             (finite ? decoded.error().message : "finite input was called non-finite")};
    }
  }
  return {};
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
  workspace_.begin();
  times_ = {};
  phase_ = Phase::running;
  done_ = Done::nothing;
  for (std::atomic<bool>& late : late_done_) late = false;
  post({.kind = Event::Kind::begin});
  return {};
}

void Executor::tensor_ready(int32_t tensor, const std::byte* values) {
  for (const Piece& piece : workspace_.pieces(tensor)) {
    if (failed_) return;
    const int64_t start_ns = values != nullptr ? clock_.now_ns() : 0;
    const bool complete = workspace_.arrived(piece, values, *device_queue_);
    if (values != nullptr) times_.encode_ms += static_cast<double>(clock_.now_ns() - start_ns) * 1e-6;
    if (!complete) continue;
    const int32_t leading = leading_device_ops(workspace_.bucket(piece.bucket));
    for (int32_t op = 0; op < leading; ++op) {
      if (!run_on_device(piece.bucket, op)) return;
    }
    post({.kind = Event::Kind::bucket_ready, .bucket = piece.bucket, .op = leading});
  }
  drain_device_ops();
}

// With the work on the device that others left to this thread.
template <typename Condition>
core::Status Executor::wait_until(const Condition& holds) {
  // A collective that outlives its deadline tells so itself; this limit is for what should not happen.
  const int64_t limit_ms = comm::completion_limit_ms(options_.timeout_ms);
  int64_t progress = progress_, idle_ms = 0;
  while (!holds() && !failed_) {
    if (drain_device_ops()) continue;
    const int64_t start_ns = clock_.now_ns();
    const bool rung = device_bell_.wait_ms(std::min(limit_ms, comm::kAlarmPeriodMs));
    idle_ms = rung || progress != progress_ ? 0 : idle_ms + comm::kAlarmPeriodMs;
    progress = progress_;
    if (idle_ms >= limit_ms) {
      fail({core::Error::Code::timeout, "nothing made progress for " + std::to_string(limit_ms) + " ms"});
    } else if (!rung && options_.alarm) {
      guarded("the alarm", [&] {
        if (core::Status status = options_.alarm(); !status) fail(status.error());
      });
    }
    // The alarm asks over the link that the step waits for, which takes as long as what is queued there.
    times_.wait_ms += static_cast<double>(clock_.now_ns() - start_ns) * 1e-6;
  }
  if (failed_) return failure();  // other threads may still write when operations began and ended
  return {};
}

core::Status Executor::await_fences() const {
  for (size_t b = 0; b < fences_.size(); ++b) {
    if (workspace_.bucket(static_cast<int32_t>(b)).due != core::Due::backward) continue;
    if (core::Status passed = fences_[b].wait(options_.timeout_ms); !passed) return passed;
  }
  return {};
}

void Executor::add_comm_ms(core::Due due) {
  for (const BucketProgram& bucket : workspace_.program()->buckets) {
    if (bucket.due != due) continue;
    for (size_t op = 0; op < bucket.ops.size(); ++op) {
      if (bucket.ops[op].kind != Op::Kind::collective) continue;
      const OpTime& time = op_times_[static_cast<size_t>(bucket.first_op) + op];
      times_.comm_ms += static_cast<double>(time.end_ns - time.begin_ns) * 1e-6;
    }
  }
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
  add_comm_ms(core::Due::backward);
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
  if (done) done = fences_[index].wait(options_.timeout_ms);
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
  add_comm_ms(core::Due::forward);
  guarded("settling a step", [&] { workspace_.settle(); });
  phase_ = Phase::settled;
  return failed_ ? failure() : core::Status();
}

bool Executor::drain_device_ops() {
  bool any = false;
  Event event;
  while (!failed_ && device_ops_->pop(event)) {
    if (run_on_device(event.bucket, event.op)) post(event);
    any = true;
  }
  return any;
}

// Behind what the bucket did before, on whatever queue.
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
  const OpTime& time = time_of(bucket, op);
  const double ms = static_cast<double>(time.end_ns - time.begin_ns) * 1e-6;
  const Op::Kind kind = workspace_.op(bucket, op).kind;
  (kind == Op::Kind::decode || kind == Op::Kind::store ? times_.decode_ms : times_.encode_ms) += ms;
  return true;
}

// --- the communication thread ----------------------------------------------------------------------------------------

void Executor::communicate() {
  for (;;) {
    communication_bell_.wait_ms(1000);
    Event event;
    while (events_->pop(event)) {
      if (event.kind == Event::Kind::stop) return;
      if (failed_) continue;
      if (!guarded("on the communication thread", [&] { handle(event); })) groups_.abort();
    }
  }
}

void Executor::handle(const Event& event) {
  ++progress_;
  actions_.clear();
  switch (event.kind) {
    case Event::Kind::begin:
      finite_ = true;
      scheduler_.begin(*workspace_.program());
      scheduler_.start(actions_);
      break;
    case Event::Kind::bucket_ready:
      look_at(event.bucket, 0, event.op);
      scheduler_.bucket_ready(event.bucket, event.op, actions_);
      break;
    case Event::Kind::op_done:
      look_at(event.bucket, event.op, event.op + 1);
      scheduler_.op_done(event.bucket, event.op, actions_);
      break;
    case Event::Kind::control_done: scheduler_.control_done(actions_); break;
    case Event::Kind::stop: break;
  }
  for (const Action& action : actions_) act(action);
}

// These operations are done.
void Executor::look_at(int32_t bucket, int32_t first_op, int32_t last_op) {
  for (int32_t op = first_op; op < last_op; ++op) finite_ = finite_ && workspace_.verdict(bucket, op).nonfinite == 0;
}

void Executor::act(const Action& action) {
  switch (action.kind) {
    case Action::Kind::start: {
      comm::Communicator& group = groups_.at(workspace_.op(action.bucket, action.op).level);
      comm::Collective collective = workspace_.collective(action.bucket, action.op, options_.timeout_ms);
      collective.after = fences_[static_cast<size_t>(action.bucket)];
      time_of(action.bucket, action.op) = {.begin_ns = clock_.now_ns(),
                                           .bytes = comm::link_bytes(collective, group.size())};
      group.start(collective, *this, token_of(action.bucket, action.op));
      break;
    }
    case Action::Kind::control:
      groups_.control.start(workspace_.control(control_word_(finite_), options_.timeout_ms), *this, kControlToken);
      break;
    case Action::Kind::run_device:
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

// Not aborted here when it throws: this may be a thread of the communicator itself.
void Executor::complete(uint64_t token, core::Status status, core::Fence done) {
  guarded("in a completion", [&] {
    if (!status) {
      fail(named(token, status.error()));
    } else if (token == kControlToken) {
      workspace_.control_done();
      post({.kind = Event::Kind::control_done});
    } else {
      time_of(bucket_of(token), op_of(token)).end_ns = clock_.now_ns();
      fences_[static_cast<size_t>(bucket_of(token))] = done;
      post({.kind = Event::Kind::op_done, .bucket = bucket_of(token), .op = op_of(token)});
    }
  });
}

void Executor::post(const Event& event) {
  events_->push(event);
  communication_bell_.ring();
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
  // Here and not where the failure was seen, which may be a thread of the communicator itself. None are left after
  // stop().
  if (!stopped_) groups_.abort();
  const std::lock_guard lock(error_mutex_);
  return error_;
}

}  // namespace gradtune::exec
