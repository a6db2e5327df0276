// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/training_thread.h"

#include <algorithm>
#include <string>

namespace gradtune::exec {

TrainingThread::TrainingThread(Shared& shared, EventHandler& handler) : shared_(shared), handler_(handler) {}

void TrainingThread::begin_program(const Program& program) { arrived_ns_.assign(program.buckets.size(), 0); }

void TrainingThread::begin_step() {
  times_ = {};
  std::ranges::fill(arrived_ns_, 0);
  missing_buckets_ = shared_.workspace.program()->buckets.size();
  shared_.mail.events.leave({.kind = Event::Kind::begin});
  // Otherwise there is nothing to do before a bucket is ready.
  if (missing_buckets_ == 0) shared_.mail.communication.bell().ring();
}

// --- gradients -------------------------------------------------------------------------------------------------------

bool TrainingThread::tensor_ready(int32_t tensor, const Arrived& arrived) {
  bool is_done_with = true;
  for (const Piece& piece : shared_.workspace.pieces(tensor)) {
    if (shared_.failure.has_happened()) return false;
    const bool is_complete = bring(tensor, piece, arrived);
    is_done_with = is_done_with && !shared_.is_away(piece.bucket) && !shared_.workspace.bucket(piece.bucket).lists;
    if (is_complete && !begin_bucket(piece.bucket)) return false;
  }
  do_operations();
  return is_done_with && !shared_.failure.has_happened();
}

// Returns true if the bucket is complete.
bool TrainingThread::bring(int32_t tensor, const Piece& piece, const Arrived& arrived) {
  const bool scales = shared_.workspace.scales_arrivals(piece.bucket);
  const bool is_work = scales || arrived.kind != Arrived::Kind::in_place;
  const int64_t start_ns = is_work ? shared_.clock.now_ns() : 0;
  bool is_complete = false;
  const bool is_there = shared_.failure.guards("bringing a gradient to its place", [&] {
    compress::Queue& queue = shared_.is_away(piece.bucket) ? shared_.options.device->current() : *queue_;
    is_complete = shared_.workspace.arrived(tensor, piece, arrived, queue);
  });
  if (is_there && is_work) {
    const int64_t took_ns = shared_.clock.now_ns() - start_ns;
    times_.encode_ms += static_cast<double>(took_ns) * 1e-6;
    if (scales) arrived_ns_[static_cast<size_t>(piece.bucket)] += took_ns;
  }
  return is_complete;
}

// All gradients of the bucket are there. Returns false if its first operations failed.
bool TrainingThread::begin_bucket(int32_t bucket) {
  --missing_buckets_;
  if (shared_.is_away(bucket)) {
    shared_.trace.ready(bucket) = shared_.options.device->current().mark();
    shared_.mail.events.post({.kind = Event::Kind::bucket_ready, .bucket = bucket, .op = 0});
    return true;
  }
  const int32_t leading = leading_device_ops(shared_.workspace.bucket(bucket));
  for (int32_t op = 0; op < leading; ++op) {
    if (!run(bucket, op)) return false;
  }
  post({.kind = Event::Kind::bucket_ready, .bucket = bucket, .op = leading});
  return true;
}

// --- operations ------------------------------------------------------------------------------------------------------

bool TrainingThread::run(int32_t bucket, int32_t op) {
  const bool is_done =
      shared_.failure.guards("on the thread that runs backward", [&] { shared_.compute(bucket, op, *queue_); });
  if (!is_done) return false;
  OpTime& time = shared_.trace.time(bucket, op);
  const double ms = static_cast<double>(time.end_ns - time.begin_ns) * 1e-6;
  const Op& what = shared_.workspace.op(bucket, op);
  (what.is<Decode>() || what.is<Store>() ? times_.decode_ms : times_.encode_ms) += ms;
  if (op == 0) time.begin_ns -= arrived_ns_[static_cast<size_t>(bucket)];
  return true;
}

bool TrainingThread::do_operations() {
  bool any = false;
  Event event;
  while (!shared_.failure.has_happened() && shared_.mail.training.take(event)) {
    if (run(event.bucket, event.op)) post(event);
    any = true;
  }
  return any;
}

void TrainingThread::post(const Event& event) {
  if (missing_buckets_ > 0 || !handles_events()) return shared_.mail.events.post(event);
  shared_.mail.events.leave(event);
  handler_.handle_all();
}

// With gradients on a device this thread handles no events, because queueing work there may take long.
bool TrainingThread::handles_events() const { return shared_.options.device == nullptr; }

// --- waits -----------------------------------------------------------------------------------------------------------

TrainingThread::Patience TrainingThread::begin_wait() {
  if (handles_events()) shared_.mail.events.wake(shared_.mail.training.bell());
  return {.events = shared_.progress.events};
}

void TrainingThread::wait_a_while(Patience& patience) {
  const ExecutorOptions& options = shared_.options;
  // A collective that exceeds its deadline reports that itself; this limit is for events that should not happen.
  const int64_t limit_ms = comm::completion_limit_ms(options.timeout_ms);
  const int64_t start_ns = shared_.clock.now_ns();
  if (handles_events()) handler_.handle_all();
  const bool rung = shared_.mail.training.bell().wait_ms(std::min(limit_ms, comm::kAlarmPeriodMs));
  const int64_t events = shared_.progress.events;
  patience.idle_ms = rung || patience.events != events ? 0 : patience.idle_ms + comm::kAlarmPeriodMs;
  patience.events = events;
  const int64_t over_ms = patience.idle_ms - limit_ms;
  if (over_ms >= 0 && over_ms < comm::kAlarmPeriodMs && options.device != nullptr) {
    shared_.mail.events.post({.kind = Event::Kind::hang});  // the communication thread knows what it queued
  } else if (over_ms >= 0) {
    shared_.failure.note({core::Error::Code::timeout, "nothing made progress for " + std::to_string(limit_ms) + " ms"});
  } else if (!rung && options.alarm) {
    shared_.failure.guards("the alarm", [&] {
      if (core::Status status = options.alarm(); !status) shared_.failure.note(status.error());
    });
  }
  // The alarm uses the same link that the step waits for, so it takes as long as the traffic queued there.
  times_.wait_ms += static_cast<double>(shared_.clock.now_ns() - start_ns) * 1e-6;
}

void TrainingThread::end_wait() {
  if (!handles_events()) return;
  shared_.mail.events.wake(shared_.mail.communication.bell());
  handler_.handle_all();  // events from threads that saw the other bell
}

void TrainingThread::read_times(core::Due due) {
  shared_.trace.read_fences(due);
  const Trace::Traffic traffic = shared_.trace.traffic(due);
  times_.comm_ms += traffic.ms;
  times_.bytes += traffic.bytes;
}

}  // namespace gradtune::exec
