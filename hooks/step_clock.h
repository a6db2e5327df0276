// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Splits the time of a step on the training thread into three parts: the user's computation, the exchange (executor
// and collectives), and gradtune's own work. A step goes from the end of one update to the end of the next. Plain
// data; it allocates nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "engine/core/clock.h"
#include "engine/exec/executor.h"
#include "hooks/hidden_exchange.h"
#include "tuner/step_protocol.h"

namespace gradtune {

class StepClock {
 public:
  // The clock must outlive this object.
  explicit StepClock(const core::Clock& clock) : clock_(clock), began_ns_(clock.now_ns()) {}

  // A step begins now.
  void restart() { began_ns_ = clock_.now_ns(); }
  // All gradients that were handed over so far travel while the program goes on, from now until it waits for them. The
  // times are the executor's so far.
  void goes_on(const exec::StepTimes& of_executor) { hidden_.begin(clock_.now_ns(), of_executor); }
  void awaits(const exec::StepTimes& of_executor) { hidden_.end(clock_.now_ns(), of_executor); }
  // The program made this number of updates since the step began, if not one. The part of the exchange that they hid
  // counts in the step all the same, so that steps compare. `operations` are the times of the exchange, which is over.
  void count_updates(int64_t updates, const std::vector<exec::OpTime>& operations) {
    updates_ = updates;
    hidden_ms_ = hidden_.ms(operations);
  }
  // A backward pass begins: no own work yet.
  void begin_pass() { own_ns_ = 0; }

  // While it exists, the time counts as gradtune's own work.
  class Own {
   public:
    explicit Own(StepClock& of) : of_(of), began_ns_(of.clock_.now_ns()) {}
    Own(const Own&) = delete;
    Own& operator=(const Own&) = delete;
    ~Own() { of_.own_ns_ += of_.clock_.now_ns() - began_ns_; }

   private:
    StepClock& of_;
    const int64_t began_ns_;
  };
  [[nodiscard]] Own own() { return Own(*this); }

  // The thread waited so long for other ranks, besides the exchange.
  void waited_apart(int64_t ns) { apart_ns_ += ns; }
  // For gradients on a device: the time for which the thread waited after backward had ended there. Own work that was
  // done while the device computed added no time to the step.
  void waited(std::optional<double> ms) {
    waited_ms_ = ms;
    if (ms) own_ns_ = 0;
  }
  // Backward has ended, with these times of the executor's step so far.
  void end_backward(const exec::StepTimes& of_executor) {
    ended_ = of_executor;
    last_ = late_ + ended_;
  }
  // Late buckets of the previous step have ended, with these times of that step.
  void settle(const exec::StepTimes& of_executor) { late_ = of_executor - ended_; }

  // Ends the step, and begins the next one.
  tuner::StepProtocol::Times end_step() {
    const int64_t now_ns = clock_.now_ns();
    const double exchange_ms = waited_ms_.value_or(last_.exchange_ms());
    const double own_ms = static_cast<double>(own_ns_) * 1e-6;
    step_ms_ = static_cast<double>(now_ns - began_ns_) * 1e-6;
    began_ns_ = now_ns;
    compute_ms_ = step_ms_ - exchange_ms - own_ms - static_cast<double>(std::exchange(apart_ns_, 0)) * 1e-6;
    return {.step_ms = step_ms_ + std::exchange(hidden_ms_, 0),
            .compute_ms = compute_ms_,
            .comm_ms = last_.comm_ms,
            .work_ms = last_.work_ms() + own_ms,
            .updates = std::exchange(updates_, 1)};
  }

  // The times of the last step.
  double step_ms() const { return step_ms_; }
  double compute_ms() const { return compute_ms_; }
  // The times of the last backward pass, in which the late buckets of the previous step were waited for.
  const exec::StepTimes& last() const { return last_; }

 private:
  const core::Clock& clock_;
  int64_t began_ns_;
  int64_t own_ns_ = 0, apart_ns_ = 0;
  std::optional<double> waited_ms_;
  double step_ms_ = 0, compute_ms_ = 0;
  int64_t updates_ = 1;
  HiddenExchange hidden_;
  double hidden_ms_ = 0;
  exec::StepTimes last_;
  exec::StepTimes ended_;  // of the executor's step at the end of backward
  exec::StepTimes late_;   // of the executor's previous step, after the end of backward
};

}  // namespace gradtune
