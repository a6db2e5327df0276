// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Finishes averages and updates that are still in flight when a step is over.
#include <optional>

#include "hooks/session.h"

namespace gradtune {

// Reports the times of the last step, once all its work has ended.
void Session::tell_times() {
  if (!ran_) return;
  if (driver_ && known_ == Known::all) driver_->ran(ran_->step, ran_->slot, executor_.program(), executor_.op_times());
  ran_.reset();
}

void Session::learn_forward() {
  const std::optional<ForwardTimes> times = overlap_.take_times();
  if (times && driver_) driver_->learn_forward(*times);
}

// Finishes all work of the previous step before a new one begins, or before strategies or gradients change.
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
  // During a backward pass no work of the previous step is left.
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
