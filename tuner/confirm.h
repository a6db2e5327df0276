// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Confirming the winner of a race: fresh pairs of blocks, winner and baseline, as many as were fixed beforehand, and
// one look at the end. The only source of the gain that is claimed. Leaves open how blocks are run.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/core/rng.h"
#include "tuner/race.h"
#include "tuner/schedule.h"

namespace gradtune::tuner {

// The probability with which a confirmation, the first, the second, ... of a run, may take a strategy for faster that is
// not: together at most 5 %, however often it is tuned again (an error spending sequence; most of it for the first).
double allowed_error(int earlier_confirmations);

// The smallest of 4, 6, 8 and 12 pairs that gives 85 % power for what the race saw of the winner (a standard error
// less, as winners look better than they are); 12 where none does: a small gain may be missed then, but pairs of two
// strategies that are about as fast cost next to nothing.
int pairs_for(const Race::Winner& winner, double error);
constexpr int kMostPairs = 12;  // where there was no race to estimate by

struct Claim {
  bool confirmed = false;  // the one-sided bound of the gain is above 0
  double baseline_ms = 0;  // geometric means over blocks
  double winner_ms = 0;
  double gain = 0;                     // 1 - winner / baseline
  double gain_low = 0, gain_high = 0;  // two-sided 95 %
  int pairs = 0;
};

class Confirmation {
 public:
  Confirmation(int32_t winner, int32_t baseline, int pairs, double error, core::Rng rng);

  // The slots of the next blocks in the order in which they are to run: at first all pairs, each in random order, later
  // what replaces those of which a block could not be scored.
  std::vector<int32_t> next_blocks();

  // The blocks asked for last, in their order.
  void score(const std::vector<Score>& blocks);

  bool is_over() const { return static_cast<int>(pairs_ms_.size()) == wanted_; }
  // With so many of the blocks asked for last done.
  double progress(size_t blocks) const {
    return (static_cast<double>(pairs_ms_.size()) + static_cast<double>(blocks) / 2) / wanted_;
  }
  Claim claim() const;  // once it is over

 private:
  struct PairMs {
    double winner, baseline;
  };
  const int32_t winner_, baseline_;
  const int wanted_;
  const double error_;
  core::Rng rng_;
  std::vector<PairMs> pairs_ms_;
};

}  // namespace gradtune::tuner
