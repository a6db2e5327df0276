// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Handles updates, and checks the model around them.
#include <ATen/record_function.h>
#include <torch/types.h>

#include <algorithm>

#include "hooks/c10d/errors.h"
#include "hooks/refusal.h"
#include "hooks/session.h"
#include "hooks/shared_state.h"

namespace gradtune {

void Session::zero_grad() {
  check_between_passes();
  // Averages that no step() used: their time belongs to no step.
  if (pass_.state() == BackwardPass::State::averaged) protocol_.exclude();
  // Another thread's watch cannot see this thread's use of parameters.
  if (overlap_.is_elsewhere()) explained(Final::every_error, [this] { finish_late(); });
  pass_.forget();
  accumulated_ = false;
  job_.model->drop_gradients();
}

torch::Tensor Session::step(const std::function<torch::Tensor()>& closure) {
  check_between_passes();
  torch::Tensor loss;
  if (closure) {
    if (core::Status can = job_.stepper->can_be_split(/*has_closure=*/true); !can) {
      overlap_.turn_off(error_of(core::Exception(can.error())).message);
    }
    const torch::AutoGradMode enable(true);
    loss = closure();
    check_between_passes();
  }
  explained(Final::every_error, [this] { check_unchanged(); });
  if (core::Status updated = overlap_.update(); !updated) fail(updated.error());
  end_update();
  return loss;
}

void Session::begin_update() {
  check_between_passes();
  overlap_.turn_off("the program runs the update itself, and not step()");
  explained(Final::every_error, [this] {
    finish_late();
    check_unchanged();
  });
}

bool Session::end_update(size_t optimizer) {
  RECORD_USER_SCOPE("gradtune::end_update");
  check_between_passes();
  const uint64_t one = uint64_t{1} << std::min<size_t>(optimizer, 63);
  const bool averaged = pass_.state() == BackwardPass::State::averaged;
  const bool is_part = !averaged && !accumulated_ && updated_ != 0 && (updated_ & one) == 0;
  updated_ = is_part ? updated_ | one : one;
  if (is_part) return false;
  untold_ = 0;
  if (!averaged && accumulated_) {
    warnings_.once(Warnings::Kind::step_without_average,
                   "step() was called after backward passes that were all under no_sync(): their gradients are this "
                   "rank's own, and ranks drift apart");
  }
  averaged ? peers_.enter(Call::step, protocol_.step()) : protocol_.exclude();  // no pass communicated
  end_step();
  return true;
}

// Handles an update that the program, or an optimizer that is not wrapped, did on its own. A single one is part of a
// step that ends with step(), such as a second pass at other weights. From the second consecutive one on, each ends
// a step when the next pass begins.
void Session::see_untold_update() {
  if (!averaged_at_ || *averaged_at_ == gradients_.sample(protocol_.step())) return;
  if (++untold_ >= 2) end_step();
}

void Session::end_step() {
  const int64_t now_ns = clock_->now_ns();
  const double exchange_ms = waited_ms_.value_or(last_times_.encode_ms + last_times_.decode_ms + last_times_.wait_ms);
  const double others_ms = exchange_ms + static_cast<double>(own_ns_) * 1e-6;
  last_step_ms_ = static_cast<double>(now_ns - step_began_ns_) * 1e-6;
  step_began_ns_ = now_ns;
  protocol_.end_step(
      {.step_ms = last_step_ms_, .compute_ms = last_step_ms_ - others_ms, .comm_ms = last_times_.comm_ms});
  pass_.forget();
  accumulated_ = false;
  averaged_at_.reset();
}

// Checks that the model is still the one that the ranks compared.
void Session::check_unchanged() {
  gradients_.check_hooked().value();
  job_.model->check_unchanged().value();
  job_.stepper->check_unchanged().value();
}

// An optimizer that steps inside backward has no averages yet, so ranks would drift apart.
void Session::check_only_read() {
  if (gradients_.sample(protocol_.step()) == begun_at_) return;
  refuse(
      "parameters were changed within a backward pass (by a hook that steps an optimizer?), where gradients are this "
      "rank's own; they are averages when backward() returns, and may be used from then on");
}

// Sends rank 0's buffers to all ranks at the end of each pass; DDP does so before the next forward pass. So an
// evaluation after the update finds equal buffers.
void Session::send_buffers() {
  if (job_.model->buffer_layout() != alike_.buffers) {
    refuse(
        "a buffer changed its shape or dtype within a backward pass, where other ranks can not be told any more; "
        "allowed is to change it before or after that");
  }
  module_broadcast_.broadcast(job_.model->buffers());
}

void Session::broadcast_buffers() {
  check_between_passes();
  protocol_.exclude();
  peers_.enter(Call::broadcast_buffers, protocol_.step());
  explained(Final::every_error, [this] {
    job_.model->buffer_layout();  // finds the current buffers
    peers_.must_agree("buffers", to_text(describe_buffers(*job_.model)));
    module_broadcast_.broadcast(job_.model->buffers());
  });
}

}  // namespace gradtune
