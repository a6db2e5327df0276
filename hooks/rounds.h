// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Training in rounds: each rank updates its own parameters, and after a number of updates a session averages what
// they changed, as a pass of its own (hooks/outer_step.h has the arithmetic). The reports of the rounds before decide
// the number of updates in a round (tuner/round_length.h). All ranks make that number. If they need not be equally
// fast, a faster rank makes more (tuner/site_speed.h), and the mean is weighted with the numbers of updates.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hooks/outer_step.h"
#include "hooks/session.h"
#include "tuner/round_length.h"
#include "tuner/site_speed.h"

namespace gradtune {

class Rounds {
 public:
  // The session takes changes in place of gradients (Arrival::handed_over, averages), and must outlive this object.
  // `uneven`: a faster rank makes more updates. The delay is 0 then.
  Rounds(Session& session, std::vector<torch::Tensor> parameters, const OuterStep::Rates& rates,
         const tuner::RoundLength& length, bool uneven = false);
  Rounds(const Rounds&) = delete;
  Rounds& operator=(const Rounds&) = delete;

  // The program updated its parameters. Begins the exchange when the round has all of its updates, and completes it
  // after the delay. Returns true if it completed one.
  bool end_update();
  // Completes the exchange that is under way, and then exchanges the updates since it began, so that all ranks have
  // equal parameters. All ranks call it. Returns false if there was nothing to exchange.
  bool end_round();
  // Completes the exchange that is under way, if any, and leaves later updates to the round; all ranks call it. The
  // session must not end before.
  bool complete();

  // The rounds from now on have these lengths, the shortest first. Not while an exchange is under way.
  void allow(const tuner::UpdatesARound& allowed);

  struct Progress {
    int64_t rounds = 0;   // whose exchange is complete
    int64_t updates = 0;  // since the last exchange began
    // The round under way, whose exchange will be under way during `delay` updates.
    int64_t updates_a_round = 1, delay = 0;  // on this rank
    // The times of the last round whose report came, in ms: the whole exchange on the slowest rank, and one update.
    double exchange_ms = 0, update_ms = 0;
  };
  Progress progress() const;
  const OuterStep& outer() const { return outer_; }

  // Checkpoints of the session and of the rounds (rounds_file.h); all ranks call them. Saving ends the round first.
  void save_checkpoint(const std::string& folder);
  void load_checkpoint(const std::string& folder);
  // Between rounds: goes on after this number of them, with such rounds, these outer momenta, and the current
  // parameters as anchors.
  void restore(int64_t rounds, const tuner::RoundShape& round, const std::vector<torch::Tensor>& momenta);

 private:
  bool is_exchanging() const { return !changes_.empty(); }
  int64_t own_updates() const;  // of the round under way
  void begin_exchange(bool is_delayed);
  double weight();  // of this rank's changes in their mean; all ranks call it in a pass
  void averaged(const core::StepReport& report);
  void say_length() const;
  void note(const std::optional<tuner::ExchangeTimes>& times);

  Session& session_;
  OuterStep outer_;
  tuner::RoundLength length_;
  std::vector<torch::Tensor> changes_;     // of the exchange under way
  int64_t rounds_ = 0, updates_ = 0;       // as in Progress
  int64_t updates_of_step_ = 0;            // since an exchange was completed
  bool is_noted_ = false;                  // the first length, in the journal
  tuner::ExchangeTimes last_;              // of the last round whose report came
  std::optional<tuner::SiteSpeed> speed_;  // of this rank, if ranks need not be equally fast
  double own_ms_ = 0;                      // of this rank's updates in the last round, for each
};

// A line for people about a new length of rounds.
std::string describe_length(const tuner::RoundLength& length, const tuner::ExchangeTimes& times);

}  // namespace gradtune
