// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The phase that confirms one strategy on fresh pairs of blocks (confirm.h): the winner of a race, or a repaired
// strategy, one whose bucket over its error budget is sent as the baseline sends it. A repaired strategy is prepared
// first, while the baseline runs. A confirmed strategy is committed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tuner/confirm.h"
#include "tuner/next_phase.h"

namespace gradtune::tuner {

struct Context;

class Confirming {
 public:
  enum class Origin : uint8_t { imported, race, repair };
  struct Repair {
    int32_t bucket = -1;  // the last one that was replaced
    std::string label;    // names all such buckets, in the order in which they were replaced
    std::string why;      // the finding about that bucket
  };

  // The winner of a race, to be confirmed with so many pairs, or with fewer if the budget has no room for all.
  Confirming(Origin origin, int32_t slot, int pairs) : origin_(origin), slot_(slot), pairs_(pairs) {}
  // A repaired strategy.
  Confirming(int32_t slot, Repair repair) : origin_(Origin::repair), slot_(slot), repair_(std::move(repair)) {}

  NextPhase begin(Context& context);
  NextPhase advance(Context& context, const std::vector<Score>& scores);
  double progress(size_t scored) const { return confirmation_ ? confirmation_->progress(scored) : 0; }

  Origin origin() const { return origin_; }
  int32_t slot() const { return slot_; }

 private:
  NextPhase prepare_repaired(Context& context) const;
  NextPhase start(Context& context, int pairs);
  NextPhase conclude(Context& context, const Claim& claim) const;
  NextPhase give_up(Context& context, const std::string& why) const;

  Origin origin_;
  int32_t slot_;
  int pairs_ = 0;  // of the winner of a race
  Repair repair_;
  std::optional<Confirmation> confirmation_;  // nothing while a repaired strategy is prepared
};

// The most steps that a confirmation with so many pairs takes if all blocks can be scored.
int steps_to_confirm(const Context& context, int pairs);

}  // namespace gradtune::tuner
