// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The exchange of one fragment in training in rounds: a session averages what the updates changed in its parameters,
// as a pass of its own, and the outer step follows (hooks/outer_step.h). Rounds (hooks/rounds.h) says when.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "hooks/outer_step.h"
#include "hooks/session.h"

namespace gradtune {

class FragmentExchange {
 public:
  // The session takes changes in place of gradients (Arrival::handed_over, averages), and must outlive this object.
  FragmentExchange(Session& session, const OuterStep::Rates& rates);
  FragmentExchange(const FragmentExchange&) = delete;
  FragmentExchange& operator=(const FragmentExchange&) = delete;

  Session& session() { return session_; }
  const OuterStep& outer() const { return outer_; }
  OuterStep& outer() { return outer_; }

  // The program updated the parameters.
  void count_update();
  // Updates since the last exchange began, and since one was completed.
  int64_t unsent_updates() const { return unsent_updates_; }
  int64_t updates_of_step() const { return updates_of_step_; }

  struct How {
    bool is_delayed = false;  // the program makes updates before complete()
    bool goes_on = true;      // see tuner::RoundState
    // The factor of this rank's changes; 1 if there is none. Called in the pass, so it may use Session::gather().
    std::function<double()> weight = {};
  };
  // Sends the changes. All ranks call it.
  void begin(const How& how);
  // Waits for the mean changes, and makes the outer step. The session's step counts so many updates, with 0 none, and
  // is not scored then.
  void complete(int64_t counted_updates);

  // The outer step of the exchange that was completed last.
  OuterStep::Outcome outcome() const { return outcome_; }
  // With it came the report of the step before, and what ranks told; the same on all ranks.
  const core::StepReport& report() const { return received_.report; }
  const tuner::RoundState& told() const { return received_.round; }

  // Between exchanges: forgets updates and report, as after a checkpoint was loaded.
  void forget();

 private:
  Session& session_;
  OuterStep outer_;
  std::vector<torch::Tensor> changes_;  // of the exchange under way
  int64_t unsent_updates_ = 0, updates_of_step_ = 0;
  OuterStep::Outcome outcome_ = OuterStep::Outcome::stepped;
  tuner::StepProtocol::Received received_ = {.report = {.excluded = true}, .command = {}};
};

}  // namespace gradtune
