// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/host_thread.h"

namespace gradtune::exec {

HostThread::HostThread(Shared& shared) : shared_(shared) {
  if (shared.options.host_threads > 0) {
    queue_ = compress::make_arena_queue(shared.options.host_threads);
  } else if (shared.options.device != nullptr) {  // it puts the arrived gradients in order
    queue_ = compress::make_serial_queue();
  }
}

void HostThread::start() {
  if (exists()) thread_ = core::BoundedThread("the executor's host thread", [this] { run(); });
}

void HostThread::stop() {
  if (!thread_.joinable()) return;
  shared_.mail.host.put({.kind = Event::Kind::stop});
  thread_.join(shared_.options.most_end_ms);
}

void HostThread::run() {
  shared_.enter_device();
  for (;;) {
    shared_.mail.host.bell().wait_ms(1000);
    Event event;
    while (shared_.mail.host.take(event)) {
      if (event.kind == Event::Kind::stop) return;
      if (shared_.failure.has_happened()) continue;
      const bool is_done = shared_.failure.guards("on the host thread", [&] {
        shared_.compute(event.bucket, event.op, *queue_);
        shared_.mail.events.post(event);
      });
      if (!is_done) shared_.groups.abort();
    }
  }
}

}  // namespace gradtune::exec
