// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/communication_thread.h"

#include <utility>

namespace gradtune::exec {

CommunicationThread::CommunicationThread(Shared& shared, EventHandler& handler, ControlWord control_word)
    : shared_(shared), handler_(handler), control_word_(std::move(control_word)) {}

void CommunicationThread::start() {
  thread_ = core::BoundedThread("the executor's communication thread", [this] { run(); });
}

void CommunicationThread::stop() {
  if (!thread_.joinable()) return;
  shared_.mail.events.post({.kind = Event::Kind::stop});
  thread_.join(shared_.options.most_end_ms);
}

void CommunicationThread::run() {
  shared_.enter_device();
  do {
    shared_.mail.communication.bell().wait_ms(1000);
    Start what;
    while (shared_.mail.communication.take(what)) {
      if (shared_.failure.has_happened()) continue;
      if (!shared_.failure.guards("on the communication thread", [&] { issue(what); })) shared_.groups.abort();
    }
  } while (handler_.handle_all());
}

void CommunicationThread::issue(const Start& what) {
  const comm::Groups& groups = shared_.groups;
  const int64_t timeout_ms = shared_.options.timeout_ms;
  if (what.bucket < 0) {
    const std::span<double> word = control_word_(what.finite);
    return groups.control.start(shared_.workspace.control(word, timeout_ms), *this, kControlToken);
  }
  comm::Communicator& group = groups.at(std::get<Collective>(shared_.workspace.op(what.bucket, what.op).work).level);
  comm::Collective collective = shared_.workspace.collective(what.bucket, what.op, timeout_ms);
  collective.after = shared_.trace.end(what.bucket);
  shared_.trace.time(what.bucket, what.op) = {.begin_ns = shared_.clock.now_ns(),
                                              .bytes = comm::link_bytes(collective, group.size())};
  group.start(collective, *this, token_of(what.bucket, what.op));
}

// Does not abort if this throws, because this may be a thread of the communicator itself.
void CommunicationThread::complete(uint64_t token, core::Status status, core::Fence done) {
  shared_.failure.guards("in a completion", [&] {
    if (!status) {
      shared_.failure.note(named(token, status.error()));
    } else if (token == kControlToken) {
      shared_.workspace.control_done();
      shared_.mail.events.post({.kind = Event::Kind::control_done});
    } else {
      completed(bucket_of(token), op_of(token), done);
    }
  });
}

void CommunicationThread::completed(int32_t bucket, int32_t op, const core::Fence& done) {
  const Op& what = shared_.workspace.op(bucket, op);
  core::Fence& end = shared_.trace.end(bucket);
  shared_.trace.time(bucket, op).end_ns = shared_.clock.now_ns();
  if (what.space != core::Space::host) {  // only queued, on the communication thread
    shared_.trace.fences(bucket, op) = {.begin = end, .end = done};
  }
  end = done;
  // On a device collectives follow each other, so the next one may use the memory of this one.
  if (what.frees) shared_.mail.events.post({.kind = Event::Kind::op_ended, .bucket = bucket, .op = op});
  shared_.mail.events.post({.kind = Event::Kind::op_done, .bucket = bucket, .op = op});
}

}  // namespace gradtune::exec
