// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/shared.h"

#include <string>

namespace gradtune::exec {

void Progress::begin_program(const Program& program) {
  late_done = std::vector<std::atomic<bool>>(program.buckets.size());
}

void Progress::begin_step() {
  ++step;
  done = Done::nothing;
  for (std::atomic<bool>& late : late_done) late = false;
}

void Shared::enter_device() {
  if (options.device == nullptr) return;
  failure.guards("on a thread's way to the device", [&] { options.device->enter(); });
}

void Shared::compute(int32_t bucket, int32_t op, compress::Queue& queue) {
  OpTime& time = trace.time(bucket, op);
  core::Fence& end = trace.end(bucket);
  time.begin_ns = clock.now_ns();
  queue.after(end, options.timeout_ms).value();
  workspace.compute(bucket, op, queue);
  end = queue.mark();
  time.end_ns = clock.now_ns();
}

core::Error Shared::hang() const {
  const std::string who = "rank " + std::to_string(groups.seat.rank) + ", step " + std::to_string(progress.step) + ": ";
  if (const auto error = trace.first_not_ended(options.timeout_ms)) return {error->code, who + error->message};
  return {core::Error::Code::timeout, who + "nothing made progress for " + std::to_string(options.timeout_ms) + " ms"};
}

}  // namespace gradtune::exec
