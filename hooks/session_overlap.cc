// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What a session does about averages and updates that are still under way when a step is over.
#include <optional>

#include "hooks/session.h"

namespace gradtune {

// Of the last step, when all that belongs to it is done.
void Session::tell_times() {
  if (!ran_) return;
  if (driver_ && known_ == Known::all) driver_->ran(ran_->step, ran_->slot, executor_.program(), executor_.op_times());
  ran_.reset();
}

void Session::learn_forward() {
  const std::optional<ForwardTimes> times = overlap_.take_times();
  if (times && driver_) driver_->learn_forward(*times);
}

// What is left of the step before, as a new one begins or strategies and gradients are touched.
void Session::settle_step() {
  finish_late();
  if (core::Status settled = executor_.drain(); !settled) fail(settled.error());
  tell_times();
  late_times_ = executor_.times() - ended_times_;
}

void Session::finish_late() {
  if (core::Status finished = overlap_.finish(); !finished) fail(finished.error());
}

void Session::synchronize() {
  check_usable();
  // In a backward pass nothing of the step before is left.
  if (!pass_.is_running()) explained(Final::every_error, [this] { finish_late(); });
}

void Session::save(torch::serialize::OutputArchive& archive) {
  synchronize();
  job_.stepper->save(archive);
}

void Session::load(torch::serialize::InputArchive& archive) {
  synchronize();
  job_.stepper->load(archive);
  protocol_.exclude();
}

}  // namespace gradtune
