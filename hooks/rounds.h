// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Training in rounds: each rank updates its own parameters, and sessions average what the updates changed, one for each
// fragment of the model (hooks/fragment_exchange.h). A round has an exchange of each fragment, spread evenly over its
// updates. With one fragment it is at the end. The reports of the rounds before decide the number of updates in a round
// (tuner/round_length.h). All ranks make that number. If they need not be equally fast, a faster rank makes more
// (tuner/site_speed.h), and the mean is weighted with the numbers of updates.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hooks/fragment_exchange.h"
#include "hooks/lost_rounds.h"
#include "hooks/outer_step.h"
#include "hooks/rounds_file.h"
#include "hooks/session.h"
#include "tuner/round_length.h"
#include "tuner/site_speed.h"

namespace gradtune {

class Rounds {
 public:
  // One session for each fragment that the length allows, in order; see FragmentExchange. They have the parameters of
  // the model between them. `uneven`: a faster rank makes more updates. There is one fragment and no delay then.
  Rounds(std::span<const std::unique_ptr<Session>> sessions, const OuterStep::Rates& rates,
         const tuner::RoundLength& length, bool uneven = false);
  Rounds(const Rounds&) = delete;
  Rounds& operator=(const Rounds&) = delete;

  // The program updated its parameters. Completes the exchange that is under way after its delay, and begins those that
  // are due. Returns true if a round ended: its last exchange is complete.
  bool end_update();
  // Exchanges all updates that were not, so that all ranks have equal parameters. All ranks call it, also if one of
  // them made fewer updates than the others: it takes part in their exchanges until they call it too. Returns false if
  // no rank had anything to exchange. `round_ended` is called for each round that ends meanwhile.
  bool end_round(const std::function<void()>& round_ended = {});
  // Completes the exchange that is under way, if any, and leaves later updates to the round; all ranks call it. Returns
  // true if it ended a round. The sessions must not end before.
  bool complete();

  // The rounds from now on have these lengths, the shortest first. Not while an exchange is under way. The number of
  // fragments stays.
  void allow(const tuner::UpdatesARound& allowed);

  struct Progress {
    int64_t rounds = 0;   // that ended
    int64_t updates = 0;  // since the last round's last exchange began
    // The round under way, each of whose exchanges will be under way during `delay` updates.
    int64_t updates_a_round = 1, delay = 0;  // on this rank
    // The times of the last round whose report came, in ms: an exchange (the mean over fragments) on the slowest rank,
    // and one update.
    double exchange_ms = 0, update_ms = 0;
    int64_t lost = 0;  // rounds, see LostRounds
  };
  Progress progress() const;
  const tuner::RoundShape& round() const { return length_.round(); }  // the same on all ranks
  std::vector<torch::Tensor> momenta() const;                         // of the outer step, for all parameters
  // True once after rounds were lost because parameters of this rank were not finite. Its optimizer's state may not be
  // either (hooks/finite_state.h).
  bool take_lost_here() { return lost_.take_here(); }

  // Checkpoints of the sessions and of the rounds (rounds_file.h); all ranks call them. Call end_round() before saving.
  void save_checkpoint(const std::string& folder);
  void load_checkpoint(const std::string& folder);
  // Between rounds: goes on after this number of them, with such rounds, these outer momenta, and the current
  // parameters as anchors.
  void restore(int64_t rounds, const tuner::RoundShape& round, const std::vector<torch::Tensor>& momenta);

 private:
  Session& first() const { return fragments_.front()->session(); }
  int64_t own_updates() const;  // of the round under way
  void begin_next(bool is_delayed, bool goes_on);
  bool complete_one(bool is_whole);  // the one under way; `is_whole`: its step has all of its updates
  bool exchange_at_end(const std::function<void()>& round_ended);  // returns true if some rank had updates
  double weigh();                                                  // the factor of this rank's changes
  void learn();                                                    // when a round has ended
  void say_length() const;
  void note(int64_t step, const std::optional<tuner::ExchangeTimes>& times);
  Sessions sessions() const;
  std::vector<torch::Tensor> parameters() const;
  std::vector<torch::Tensor> of_all(const std::vector<torch::Tensor>& (OuterStep::*tensors)() const) const;

  std::vector<std::unique_ptr<FragmentExchange>> fragments_;
  tuner::RoundLength length_;
  int64_t rounds_ = 0, updates_ = 0;       // as in Progress
  size_t next_ = 0;                        // the fragment whose exchange begins next
  FragmentExchange* under_way_ = nullptr;  // one at most
  bool has_updates_ = false;               // some rank had, in the exchanges of this round
  bool is_noted_ = false;                  // the first length, in the journal
  tuner::ExchangeTimes last_;              // of the last round whose report came
  std::optional<tuner::SiteSpeed> speed_;  // of this rank, if ranks need not be equally fast
  // The time of an update on this rank: in the last round, and in the one before if it counts, which ranks are told.
  double own_ms_ = 0, told_ms_ = 0;
  LostRounds lost_;
};

// The result of tuning the sessions of all fragments: decided if all are, with the buckets of each. The rest is the
// first one's.
Optimizer::Result result_of(std::span<const std::unique_ptr<Session>> sessions);

// A line for people about a new length of rounds.
std::string describe_length(const tuner::RoundLength& length, const tuner::ExchangeTimes& times);

}  // namespace gradtune
