// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The exchange of one fragment in training in rounds: a session averages what the updates changed in its parameters,
// as a pass of its own, and the outer step follows (hooks/outer_step.h). Rounds (hooks/rounds.h) says when.
#pragma once

#include <cstdint>
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

  // Sends the changes. `is_delayed`: the program makes updates before complete(). `is_weighted`: by this rank's share
  // of the unsent updates of all ranks. All ranks call it.
  void begin(bool is_delayed, bool is_weighted);
  // Waits for the mean changes, and makes the outer step. The session's step counts so many updates, with 0 none, and
  // is not scored then. Returns false if the changes were lost, because one was not finite on some rank.
  bool complete(int64_t counted_updates);

  // The report of the step before the one that was completed last; the same on all ranks.
  const core::StepReport& report() const { return report_; }

  // Between exchanges: forgets updates and report, as after a checkpoint was loaded.
  void forget();

 private:
  double share_of_updates();

  Session& session_;
  OuterStep outer_;
  std::vector<torch::Tensor> changes_;  // of the exchange under way
  int64_t unsent_updates_ = 0, updates_of_step_ = 0;
  bool is_finite_ = true;  // the last mean changes
  core::StepReport report_ = {.excluded = true};
};

}  // namespace gradtune
