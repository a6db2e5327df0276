// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/event_handler.h"

namespace gradtune::exec {
namespace {

Device::Stream stream_of(const Op& op, const BucketProgram& bucket) {
  const auto* const copy = op.as<Copy>();
  if (copy == nullptr) return Device::Stream::codec;
  const bool to_host = space_of(copy->to, bucket) == core::Space::host;
  return to_host ? Device::Stream::to_host : Device::Stream::to_device;
}

}  // namespace

bool EventHandler::handle_all() {
  bool goes_on = true;
  shared_.mail.events.handle_all([&](const Event& event) {
    goes_on = goes_on && event.kind != Event::Kind::stop;
    if (shared_.failure.has_happened() || !goes_on) return;
    if (!shared_.failure.guards("while handling what happened", [&] { handle(event); })) shared_.groups.abort();
  });
  return goes_on;
}

void EventHandler::handle(const Event& event) {
  ++shared_.progress.events;
  actions_.clear();
  switch (event.kind) {
    case Event::Kind::begin: {
      const Program& program = *shared_.workspace.program();
      finite_ = true;
      actions_.reserve(most_events(program));  // so that later steps allocate nothing
      scheduler_.begin(program);
      scheduler_.start(actions_);
      break;
    }
    case Event::Kind::bucket_ready:
      if (!shared_.is_away(event.bucket)) look_at(event.bucket, 0, event.op);
      scheduler_.bucket_ready(event.bucket, event.op, actions_);
      break;
    case Event::Kind::op_done:
      if (has_ended(event)) {
        shared_.workspace.take_report(event.bucket);
        look_at(event.bucket, shared_.is_away(event.bucket) ? 0 : event.op, event.op + 1);
      }
      scheduler_.op_done(event.bucket, event.op, actions_);
      break;
    case Event::Kind::op_ended: scheduler_.op_ended(event.bucket, event.op, actions_); break;
    case Event::Kind::control_done: scheduler_.control_done(actions_); break;
    case Event::Kind::hang: shared_.failure.note(shared_.hang()); break;
    case Event::Kind::stop: break;
  }
  for (size_t i = 0; i < actions_.size(); ++i) act(Action(actions_[i]));  // an action may append more actions
}

// Returns false for a collective on a device: it is done when it is queued, and the work before it may still be in
// progress.
bool EventHandler::has_ended(const Event& done) const {
  const Op& op = shared_.workspace.op(done.bucket, done.op);
  return !op.is<Collective>() || op.space == core::Space::host;
}

// Notes the verdicts of these operations, which are done.
void EventHandler::look_at(int32_t bucket, int32_t first_op, int32_t last_op) {
  for (int32_t op = first_op; op < last_op; ++op) {
    finite_ = finite_ && shared_.workspace.verdict(bucket, op).nonfinite == 0;
  }
}

void EventHandler::act(const Action& action) {
  Mail& mail = shared_.mail;
  Progress& progress = shared_.progress;
  const Event op{.kind = Event::Kind::op_done, .bucket = action.bucket, .op = action.op};
  switch (action.kind) {
    case Action::Kind::start: mail.communication.put({.bucket = action.bucket, .op = action.op}); break;
    case Action::Kind::control: mail.communication.put({.finite = finite_}); break;
    case Action::Kind::run_device:
      if (shared_.is_away(action.bucket)) return enqueue(action.bucket, action.op);
      mail.training.put(op);
      break;
    case Action::Kind::run_host: mail.host.put(op); break;
    case Action::Kind::late_done:
      progress.late_done[static_cast<size_t>(action.bucket)] = true;
      mail.training.bell().ring();
      break;
    case Action::Kind::backward_done:
      progress.done = Progress::Done::backward;
      mail.training.bell().ring();
      break;
    case Action::Kind::finished:
      progress.done = Progress::Done::all;
      mail.training.bell().ring();
      break;
  }
}

// Queues an operation on the device and waits for nothing. The next operation may be queued at once, unless it is on
// the host.
void EventHandler::enqueue(int32_t bucket, int32_t op) {
  Device& device = *shared_.options.device;
  const int64_t timeout_ms = shared_.options.timeout_ms;
  const Op& what = shared_.workspace.op(bucket, op);
  compress::Queue& queue = device.queue(stream_of(what, shared_.workspace.bucket(bucket)));
  core::Fence& end = shared_.trace.end(bucket);
  OpFences& fences = shared_.trace.fences(bucket, op);
  if (op == 0) queue.after(shared_.trace.ready(bucket), timeout_ms).value();
  queue.after(end, timeout_ms).value();
  fences.begin = queue.mark();
  shared_.workspace.compute(bucket, op, queue);
  // This precedes the mark, because after the mark has passed no listener may be told any more.
  if (what.is_told || what.frees) device.notify(queue, *this, token_of(bucket, op));
  end = fences.end = queue.mark();
  if (!what.is_told) scheduler_.op_done(bucket, op, actions_);
}

void EventHandler::ended(uint64_t token) {
  const int32_t bucket = bucket_of(token), op = op_of(token);
  const Op& what = shared_.workspace.op(bucket, op);
  if (what.frees) shared_.mail.events.post({.kind = Event::Kind::op_ended, .bucket = bucket, .op = op});
  if (what.is_told) shared_.mail.events.post({.kind = Event::Kind::op_done, .bucket = bucket, .op = op});
}

}  // namespace gradtune::exec
