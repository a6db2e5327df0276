// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The phase that compares finalists in a race (race.h): the results of a search, the imported strategy, or the
// strategies known from before. It first prepares them on all ranks. The winner goes on to its confirmation; among
// known strategies the winner decides instead if a new search is needed (ranking.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "tuner/next_phase.h"
#include "tuner/race.h"

namespace gradtune::tuner {

struct Context;

constexpr size_t kMostFinalists = 7;  // including the committed strategy: with the baseline 8 arms

class Racing {
 public:
  enum class Among : uint8_t {
    imported,  // the imported strategy alone
    found,     // results of a search, and leaders of races before it
    known,     // strategies known before: a winner other than the one in force starts a search
  };

  // The finalists are prepared, or in line to be. start_race() makes sure of that.
  Racing(Among among, std::vector<int32_t> finalists);

  NextPhase begin(Context& context);
  NextPhase advance(Context& context, const std::vector<Score>& scores);
  double progress(size_t) const { return race_ ? race_->progress() : 0; }

  Among among() const { return among_; }

 private:
  void start(const Context& context);
  void score(Context& context, const std::vector<Score>& scores);
  bool leaves_room(const Context& context) const;
  NextPhase confirm_winner(Context& context) const;

  Among among_;
  std::vector<int32_t> finalists_;
  std::optional<Race> race_;  // nothing while they are prepared
};

// A race among those slots without the ones far behind the fastest, and with the strategies that have a place in any
// race: the committed one and the leaders of former races. All other slots are released.
Racing start_race(Context& context, Racing::Among among, std::vector<int32_t> finalists);

}  // namespace gradtune::tuner
