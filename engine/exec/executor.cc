// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/executor.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace gradtune::exec {
namespace {

constexpr uint64_t kControlToken = ~uint64_t{0};

uint64_t token_of(int32_t bucket, int32_t op) {
  return static_cast<uint64_t>(static_cast<uint32_t>(bucket)) << 32 | static_cast<uint32_t>(op);
}

// More than a step can have: one event per operation and bucket, its begin and its end.
size_t most_events(const Program& program) {
  size_t events = 8;
  for (const BucketProgram& bucket : program.buckets) events += bucket.ops.size() + 2;
  return events;
}

bool uses_host(const Program& program) {
  return std::any_of(program.buckets.begin(), program.buckets.end(), [](const BucketProgram& bucket) {
    return std::any_of(bucket.ops.begin(), bucket.ops.end(), [](const Op& op) { return op.place == core::Place::host; });
  });
}

bool same_elements(const core::GradientTable& a, const core::GradientTable& b) {
  return std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(),
                    [](const core::TensorInfo& x, const core::TensorInfo& y) {
                      return x.name == y.name && x.shape == y.shape && x.numel == y.numel && x.dtype == y.dtype;
                    });
}

}  // namespace

Executor::Executor(comm::Communicator& data, comm::Communicator& control, const core::Clock& clock,
                   const ExecutorOptions& options, ControlWord control_word)
    : data_(data),
      control_(control),
      clock_(clock),
      options_(options),
      control_word_(std::move(control_word)),
      device_queue_(compress::make_serial_queue()) {
  if (options.host_threads > 0) host_queue_ = compress::make_arena_queue(options.host_threads);
  start_threads(64);
}

Executor::~Executor() { stop(); }

void Executor::stop() {
  if (!communication_thread_.joinable()) return;
  if (!finished_) abort_communicators();
  fail({core::Error::Code::lost, "the executor was stopped"});
  end_threads();
}

void Executor::start_threads(size_t most_events) {
  events_ = std::make_unique<EventRing<Event>>(most_events);
  device_ops_ = std::make_unique<EventRing<Event>>(most_events);
  host_ops_ = std::make_unique<EventRing<Event>>(most_events);
  communication_thread_ = std::thread([this] { communicate(); });
  if (host_queue_) host_thread_ = std::thread([this] { work_on_host(); });
}

void Executor::end_threads() {
  post({.kind = Event::Kind::stop});
  communication_thread_.join();
  if (!host_queue_) return;
  host_ops_->push({.kind = Event::Kind::stop});
  host_bell_.ring();
  host_thread_.join();
}

// --- between steps -------------------------------------------------------------------------------------------------------

void Executor::set_gradients(const core::GradientTable& table, const Arenas& arenas) {
  if (failed_) return;
  if (program_ != nullptr) residuals_.leave(*program_);
  program_ = nullptr;
  slots_.clear();
  if (!same_elements(table_, table)) residuals_ = {};
  table_ = table;
  arenas_ = arenas;
}

core::Status Executor::prepare(int32_t slot, const core::Strategy& strategy) {
  if (failed_) return failure();
  core::check(program_ == nullptr || find(slot) != program_, "the strategy in force can not be replaced");
  if (core::Status status = core::validate(strategy, table_); !status) return status;
  auto compiled = compile(strategy, table_, data_.rank(), data_.size());
  if (!compiled) return compiled.error();
  std::unique_ptr<Program> program = std::move(compiled.value());
  if (host_queue_ == nullptr && uses_host(*program)) {
    return core::Error{core::Error::Code::invalid, "placement host needs at least one host thread, there are none"};
  }
  if (core::Status status = self_test(*program); !status) return status;
  if (core::Status status = reserve(*program); !status) return status;
  if (const size_t events = most_events(*program); events > events_->capacity()) {
    // Nothing is under way between steps, so the threads can go, and come back with larger rings.
    end_threads();
    start_threads(events);
  }
  slots_[slot] = std::move(program);
  return {};
}

core::Status Executor::reserve(const Program& program) {
  int64_t residual_bytes = residuals_.bytes();
  if (program.keeps_residual && !residuals_.allocated()) {
    for (const Arena& arena : arenas_) residual_bytes += arena.numel * 8;
  }
  const int64_t pool_bytes = std::max(pool_.bytes(), program.pool_bytes);
  const std::string needs = "the strategy needs " + std::to_string(pool_bytes + residual_bytes) +
                            " bytes of residual and payload memory, ";
  if (pool_bytes + residual_bytes > options_.memory_budget_bytes) {
    return core::Error{core::Error::Code::invalid,
                       needs + "memory_budget allows " + std::to_string(options_.memory_budget_bytes)};
  }
  try {
    if (pool_bytes > pool_.bytes()) {
      pool_ = AlignedBytes(pool_bytes);
      std::memset(pool_.data(), 0, static_cast<size_t>(pool_bytes));  // page faults belong here, not into a measured step
    }
    if (program.keeps_residual) residuals_.allocate(arenas_);
  } catch (const std::bad_alloc&) {
    return core::Error{core::Error::Code::io, needs + "the system has not that much"};
  }
  return {};
}

core::Status Executor::self_test(const Program& program) const {
  constexpr int64_t kElements = 1000;
  std::vector<float> input(kElements), output(kElements);
  for (int64_t i = 0; i < kElements; ++i) input[static_cast<size_t>(i)] = static_cast<float>(i % 17 - 8) * 0.125F;
  for (const auto& codec : program.codecs) {
    AlignedBytes payload(codec->payload_bytes(kElements)), scratch(codec->scratch_bytes(kElements));
    const std::span<std::byte> bytes{payload.data(), static_cast<size_t>(payload.bytes())};
    const compress::Encode job{.gradient = input,
                               .payload = bytes,
                               .scratch = {scratch.data(), static_cast<size_t>(scratch.bytes())}};
    const bool finite = codec->encode(job, *device_queue_);
    const std::span<const std::byte> payloads[] = {bytes};
    const core::Status decoded = codec->decode(payloads, output, false, *device_queue_);
    if (!finite || !decoded) {
      return core::Error{core::Error::Code::corrupt,
                         "compressor " + core::to_string(codec->spec()) + " failed its self-test: " +
                             (finite ? decoded.error().message : "finite input was called non-finite")};
    }
  }
  return {};
}

const Program* Executor::find(int32_t slot) const {
  const auto found = slots_.find(slot);
  return found == slots_.end() ? nullptr : found->second.get();
}

void Executor::drop(int32_t slot) {
  core::check(program_ == nullptr || find(slot) != program_, "the strategy in force can not be dropped");
  slots_.erase(slot);
}

void Executor::run(int32_t slot) {
  if (failed_) return;
  const Program* next = find(slot);
  core::check(next != nullptr, "a slot must be prepared before it is run");
  if (next == program_) return;
  if (program_ != nullptr) residuals_.leave(*program_);
  program_ = next;
  residuals_.enter(*program_);
  missing_tensors_.reserve(program_->buckets.size());
}

bool Executor::keeps_residual(int32_t tensor) const {
  const std::vector<Piece>& pieces = program_->pieces_of_tensor[static_cast<size_t>(tensor)];
  return std::any_of(pieces.begin(), pieces.end(), [&](const Piece& piece) {
    return program_->buckets[static_cast<size_t>(piece.bucket)].keeps_residual;
  });
}

// --- a step, on the thread that runs backward ----------------------------------------------------------------------------

void Executor::begin_step() {
  core::check(program_ != nullptr, "a strategy must be in force before a step begins");
  if (failed_) return;
  core::check(finished_, "the step before has not been finished");
  missing_tensors_.resize(program_->buckets.size());
  for (size_t b = 0; b < missing_tensors_.size(); ++b) missing_tensors_[b] = program_->buckets[b].tensors;
  times_ = {};
  finite_ = true;
  finished_ = false;
  post({.kind = Event::Kind::begin});
}

void Executor::tensor_ready(int32_t tensor, const std::byte* values) {
  for (const Piece& piece : program_->pieces_of_tensor[static_cast<size_t>(tensor)]) {
    if (failed_) return;
    if (values != nullptr) bring(piece, values);
    const int32_t bucket = piece.bucket;
    if (--missing_tensors_[static_cast<size_t>(bucket)] > 0) continue;
    const int32_t leading = leading_device_ops(program_->buckets[static_cast<size_t>(bucket)]);
    for (int32_t op = 0; op < leading; ++op) run_on_device(bucket, op);
    post({.kind = Event::Kind::bucket_ready, .bucket = bucket, .op = leading});
  }
  drain_device_ops();
}

void Executor::bring(const Piece& piece, const std::byte* values) {
  const int64_t start_ns = clock_.now_ns();
  const core::DType dtype = program_->buckets[static_cast<size_t>(piece.bucket)].dtype;
  const int64_t width = bytes_per_element(dtype);
  std::memcpy(arenas_[static_cast<size_t>(dtype)].data + piece.arena_begin * width, values + piece.tensor_begin * width,
              static_cast<size_t>(piece.length * width));
  times_.encode_ms += static_cast<double>(clock_.now_ns() - start_ns) * 1e-6;
}

core::Status Executor::finish_step() {
  // A collective that outlives its deadline tells so itself; this limit is for what should not happen.
  const int64_t limit_ms = options_.timeout_ms + options_.timeout_ms / 4 + 1000;
  constexpr int64_t kAlarmPeriodMs = 250;
  int64_t progress = progress_, idle_ms = 0;
  while (!finished_ && !failed_) {
    if (drain_device_ops()) continue;
    const int64_t start_ns = clock_.now_ns();
    const bool rung = device_bell_.wait_ms(std::min(limit_ms, kAlarmPeriodMs));
    times_.wait_ms += static_cast<double>(clock_.now_ns() - start_ns) * 1e-6;
    idle_ms = rung || progress != progress_ ? 0 : idle_ms + kAlarmPeriodMs;
    progress = progress_;
    if (idle_ms >= limit_ms) {
      fail({core::Error::Code::timeout, "nothing made progress for " + std::to_string(limit_ms) + " ms"});
    } else if (!rung && options_.alarm) {
      if (core::Status status = options_.alarm(); !status) fail(status.error());
    }
  }
  return failed_ ? failure() : core::Status();
}

core::Status Executor::settle(bool finite) {
  if (failed_) return failure();
  const std::optional<core::Error> undecodable = std::exchange(undecodable_, std::nullopt);
  if (finite) {
    if (undecodable) {
      fail(*undecodable);
      return failure();
    }
    residuals_.swap(*program_);
    return {};
  }
  for (size_t d = 0; d < arenas_.size(); ++d) {
    // The same pattern of bits, all ones, is a NaN in every dtype.
    if (arenas_[d].numel > 0) {
      std::memset(arenas_[d].data, 0xff, static_cast<size_t>(arenas_[d].numel * bytes_per_element(static_cast<core::DType>(d))));
    }
  }
  return {};
}

bool Executor::drain_device_ops() {
  bool any = false;
  Event event;
  while (!failed_ && device_ops_->pop(event)) {
    run_on_device(event.bucket, event.op);
    post(event);
    any = true;
  }
  return any;
}

void Executor::run_on_device(int32_t bucket, int32_t op) {
  const int64_t start_ns = clock_.now_ns();
  run_bucket_op(bucket, op, *device_queue_);
  const double ms = static_cast<double>(clock_.now_ns() - start_ns) * 1e-6;
  const Op::Kind kind = program_->buckets[static_cast<size_t>(bucket)].ops[static_cast<size_t>(op)].kind;
  (kind == Op::Kind::decode || kind == Op::Kind::store ? times_.decode_ms : times_.encode_ms) += ms;
}

void Executor::run_bucket_op(int32_t bucket, int32_t op, compress::Queue& queue) {
  const BucketProgram& program = program_->buckets[static_cast<size_t>(bucket)];
  const ComputeResult result = run_op(program, program.ops[static_cast<size_t>(op)], memory_of(bucket), queue);
  if (!result.finite) finite_.store(false, std::memory_order_relaxed);
  if (!result.status) {
    const std::lock_guard lock(error_mutex_);
    undecodable_ = {result.status.error().code, "bucket " + std::to_string(bucket) + ": " + result.status.error().message};
  }
}

BucketMemory Executor::memory_of(int32_t bucket) const {
  const auto index = static_cast<size_t>(bucket);
  const BucketProgram& program = program_->buckets[index];
  const Arena& arena = arenas_[static_cast<size_t>(program.dtype)];
  return {.pool = pool_.data(),
          .gradient = arena.data + program.arena_begin * bytes_per_element(program.dtype),
          .residual = program.keeps_residual ? residuals_.current(program, index) : nullptr,
          .residual_next = program.keeps_residual ? residuals_.next(program, index) : nullptr,
          .size = data_.size()};
}

// --- the communication thread --------------------------------------------------------------------------------------------

void Executor::communicate() {
  for (;;) {
    communication_bell_.wait_ms(1000);
    Event event;
    while (events_->pop(event)) {
      if (!handle(event)) return;
    }
  }
}

bool Executor::handle(const Event& event) {
  if (event.kind == Event::Kind::stop) return false;
  if (failed_) return true;
  ++progress_;
  actions_.clear();
  switch (event.kind) {
    case Event::Kind::begin:
      core_.begin(*program_);
      core_.start(actions_);
      break;
    case Event::Kind::bucket_ready: core_.bucket_ready(event.bucket, event.op, actions_); break;
    case Event::Kind::op_done: core_.op_done(event.bucket, event.op, actions_); break;
    case Event::Kind::control_done: core_.control_done(actions_); break;
    case Event::Kind::stop: break;
  }
  for (const Action& action : actions_) act(action);
  return true;
}

void Executor::act(const Action& action) {
  switch (action.kind) {
    case Action::Kind::start: start_collective(action.bucket, action.op); break;
    case Action::Kind::control: start_control(); break;
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

void Executor::start_collective(int32_t bucket, int32_t op) {
  const Op& what = program_->buckets[static_cast<size_t>(bucket)].ops[static_cast<size_t>(op)];
  const BucketMemory memory = memory_of(bucket);
  comm::Collective collective{.kind = what.collective, .type = what.wire, .count = what.count};
  collective.in = what.on_gradient ? memory.gradient : memory.pool + what.input;
  collective.out = what.on_gradient ? memory.gradient : memory.pool + what.output;
  collective.timeout_ms = options_.timeout_ms;
  data_.start(collective, *this, token_of(bucket, op));
}

void Executor::start_control() {
  const std::span<double> word = control_word_(finite_);
  control_.start({.kind = comm::Collective::Kind::all_reduce,
                  .reduction = comm::Collective::Reduction::max,
                  .type = comm::WireType::f64,
                  .out = reinterpret_cast<std::byte*>(word.data()),
                  .count = static_cast<int64_t>(word.size()),
                  .timeout_ms = options_.timeout_ms},
                 *this, kControlToken);
}

// --- the host thread -----------------------------------------------------------------------------------------------------

void Executor::work_on_host() {
  for (;;) {
    host_bell_.wait_ms(1000);
    Event event;
    while (host_ops_->pop(event)) {
      if (event.kind == Event::Kind::stop) return;
      if (failed_) continue;
      run_bucket_op(event.bucket, event.op, *host_queue_);
      post(event);
    }
  }
}

// --- from any thread -----------------------------------------------------------------------------------------------------

void Executor::complete(uint64_t token, core::Status status) {
  const auto bucket = static_cast<int32_t>(token >> 32);
  const auto op = static_cast<int32_t>(token & 0xffffffffU);
  if (!status) {
    const std::string what = token == kControlToken ? "the control collective" : "a collective of bucket " + std::to_string(bucket);
    fail({status.error().code, what + " failed: " + status.error().message});
  } else if (token == kControlToken) {
    post({.kind = Event::Kind::control_done});
  } else {
    post({.kind = Event::Kind::op_done, .bucket = bucket, .op = op});
  }
}

void Executor::post(const Event& event) {
  events_->push(event);
  communication_bell_.ring();
}

void Executor::fail(core::Error error) {
  {
    const std::lock_guard lock(error_mutex_);
    if (failed_) return;
    error_ = std::move(error);
    failed_ = true;
  }
  device_bell_.ring();
}

core::Status Executor::failure() {
  // Here and not where the failure was seen, which may be a thread of the communicator itself. None are left after stop().
  if (communication_thread_.joinable()) abort_communicators();
  const std::lock_guard lock(error_mutex_);
  return error_;
}

void Executor::abort_communicators() {
  data_.abort();
  control_.abort();
}

}  // namespace gradtune::exec
