// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/executor.h"

#include <algorithm>
#include <utility>

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
      workspace_(groups.seat, options.seed),
      device_queue_(compress::make_serial_queue()) {
  if (options.host_threads > 0) host_queue_ = compress::make_arena_queue(options.host_threads);
  start_threads(64);
}

Executor::~Executor() { stop(); }

void Executor::stop() {
  if (std::exchange(stopped_, true)) return;
  if (!finished_) groups_.abort();
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
  if (failed_) return;
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

core::Status Executor::prepare(int32_t slot, const core::Strategy& strategy) {
  if (failed_) return failure();
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
  first_op_.clear();
  int32_t ops = 0;
  for (const BucketProgram& bucket : workspace_.program()->buckets) {
    first_op_.push_back(ops);
    ops += static_cast<int32_t>(bucket.ops.size());
  }
  op_times_.assign(static_cast<size_t>(ops), {});
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
      finite = codec->encode(job, *device_queue_) && finite;
      const std::span<const std::byte> payloads[] = {bytes};
      decoded = codec->decode({.payloads = payloads, .out = output, .work = work}, *device_queue_);
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

void Executor::begin_step() {
  if (failed_) return;
  core::check(finished_, "the step before has not been finished");
  workspace_.begin();
  times_ = {};
  finished_ = false;
  post({.kind = Event::Kind::begin});
}

void Executor::tensor_ready(int32_t tensor, const std::byte* values) {
  for (const Piece& piece : workspace_.pieces(tensor)) {
    if (failed_) return;
    const int64_t start_ns = values != nullptr ? clock_.now_ns() : 0;
    const bool complete = workspace_.arrived(piece, values);
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

core::Status Executor::finish_step() {
  // A collective that outlives its deadline tells so itself; this limit is for what should not happen.
  const int64_t limit_ms = comm::completion_limit_ms(options_.timeout_ms);
  int64_t progress = progress_, idle_ms = 0;
  while (!finished_ && !failed_) {
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
  for (size_t b = 0; b < first_op_.size(); ++b) {
    const std::vector<Op>& ops = workspace_.bucket(static_cast<int32_t>(b)).ops;
    for (size_t op = 0; op < ops.size(); ++op) {
      if (ops[op].kind != Op::Kind::collective) continue;
      const OpTime& time = time_of(static_cast<int32_t>(b), static_cast<int32_t>(op));
      times_.comm_ms += static_cast<double>(time.end_ns - time.begin_ns) * 1e-6;
    }
  }
  return {};
}

core::Result<bool> Executor::settle(bool finite) {
  if (failed_) return failure().error();
  core::Result<bool> settled = false;
  guarded("settling a step", [&] { settled = workspace_.settle(finite); });
  if (!settled) fail(settled.error());
  if (failed_) return failure().error();
  return settled;
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

bool Executor::run_on_device(int32_t bucket, int32_t op) {
  OpTime& time = time_of(bucket, op);
  time.begin_ns = clock_.now_ns();
  const auto compute = [&] { workspace_.compute(bucket, op, *device_queue_); };
  if (!guarded("on the thread that runs backward", compute)) return false;
  time.end_ns = clock_.now_ns();
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
      scheduler_.begin(*workspace_.program());
      scheduler_.start(actions_);
      break;
    case Event::Kind::bucket_ready: scheduler_.bucket_ready(event.bucket, event.op, actions_); break;
    case Event::Kind::op_done: scheduler_.op_done(event.bucket, event.op, actions_); break;
    case Event::Kind::control_done: scheduler_.control_done(actions_); break;
    case Event::Kind::stop: break;
  }
  for (const Action& action : actions_) act(action);
}

void Executor::act(const Action& action) {
  switch (action.kind) {
    case Action::Kind::start:
      time_of(action.bucket, action.op).begin_ns = clock_.now_ns();
      groups_.at(workspace_.op(action.bucket, action.op).level)
          .start(workspace_.collective(action.bucket, action.op, options_.timeout_ms), *this,
                 token_of(action.bucket, action.op));
      break;
    case Action::Kind::control:
      groups_.control.start(workspace_.control(control_word_(workspace_.finite()), options_.timeout_ms), *this,
                            kControlToken);
      break;
    case Action::Kind::run_device:
      device_ops_->push({.kind = Event::Kind::op_done, .bucket = action.bucket, .op = action.op});
      device_bell_.ring();
      break;
    case Action::Kind::run_host:
      host_ops_->push({.kind = Event::Kind::op_done, .bucket = action.bucket, .op = action.op});
      host_bell_.ring();
      break;
    case Action::Kind::finished:
      finished_ = true;
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
  OpTime& time = time_of(event.bucket, event.op);
  time.begin_ns = clock_.now_ns();
  workspace_.compute(event.bucket, event.op, *host_queue_);
  time.end_ns = clock_.now_ns();
  post(event);
}

// --- from any thread -------------------------------------------------------------------------------------------------

// Not aborted here when it throws: this may be a thread of the communicator itself.
void Executor::complete(uint64_t token, core::Status status) {
  guarded("in a completion", [&] {
    if (!status) {
      fail(named(token, status.error()));
    } else if (token == kControlToken) {
      workspace_.control_done();
      post({.kind = Event::Kind::control_done});
    } else {
      time_of(bucket_of(token), op_of(token)).end_ns = clock_.now_ns();
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
