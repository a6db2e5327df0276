// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The phase that measures the strategies that the policy proposes, in short blocks, round after round. The policy's
// final proposal goes to a race. Every search has a policy of its own. Strategies that may run only much later are
// left out (SearchRecord).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "policies/policy.h"
#include "tuner/next_phase.h"
#include "tuner/schedule.h"
#include "tuner/slot_table.h"

namespace gradtune::tuner {

struct Context;

class Searching {
 public:
  NextPhase begin(Context& context);
  NextPhase advance(Context& context, const std::vector<Score>& scores);
  double progress(size_t scored) const { return static_cast<double>(scored) / static_cast<double>(scored + 1); }

  // Takes the score of a block as soon as it ends: the policy learns it, and slow strategies lose their slots.
  void learn(Context& context, const Score& score);

  // Puts the strategy under preparation on the schedule, before it is known if all ranks can run it. Call it for
  // every step; `prepared` is a preparation that ended with that step. Ranks that finish in time run the strategy a
  // step sooner; if one of them does not, the switch takes place on none. Returns true in that case.
  bool follow(Context& context, const std::optional<SlotTable::Prepared>& prepared);
  bool is_trial_ahead() const { return is_trial_ahead_; }  // such a block is scheduled

 private:
  NextPhase ask(Context& context);

  std::unique_ptr<policies::Policy> policy_;  // null before the search begins
  bool is_trial_ahead_ = false;
};

// The knowledge without the compressors that the search leaves out.
policies::Knowledge known_for_search(Context& context);

}  // namespace gradtune::tuner
