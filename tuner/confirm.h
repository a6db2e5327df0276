// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Confirms the winner of a race on fresh pairs of blocks, winner and baseline. The number of pairs is fixed
// beforehand, and there is one look at the end. No other step claims a gain. The test assumes nothing but the random
// order inside pairs: load that comes and goes hits either block with the same probability, however long it lasts.
// If either of two baselines may be the faster one, each pair has a block of both, and the winner has to be faster
// than both. It leaves open how blocks are run; the blocks of a pair have to be alike.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/core/rng.h"
#include "tuner/comparison.h"
#include "tuner/race.h"
#include "tuner/schedule.h"

namespace gradtune::tuner {

// The probability with which the first, second, ... confirmation of a run may commit a strategy that is not faster.
// The probabilities sum to at most 5 % however often a job tunes again. Most goes to the first one; that of later
// ones falls with the square of their number, and a few more pairs make up for it.
double allowed_error(int earlier_confirmations);

// The smallest of 6, 8, 10 and 12 pairs that can prove a gain with that error against so many baselines, and that
// has 85 % power for the gain that the race saw. Winners look better than they are, so a standard error is
// subtracted from that gain. If no number is enough, the result is most_pairs: a small gain may be missed, but pairs
// of equally fast strategies cost little.
int pairs_for(const Race::Winner& winner, double error, size_t baselines);
int fewest_pairs(double error, size_t baselines);  // the fewest pairs that can prove any gain
int most_pairs(double error);  // 12, or more if that error needs more; also used if no race gave an estimate

// Times are geometric means over blocks. A bound is infinite if there are too few pairs for one.
struct Claim : Comparison {
  bool confirmed = false;  // the lower bound of the gain is above 0
  int32_t baseline = 0;    // the faster baseline
  int pairs = 0;
};

class Confirmation {
 public:
  Confirmation(int32_t winner, const std::vector<int32_t>& baselines, int pairs, double error, core::Rng rng);

  // The slots of the next blocks in the order in which they are to run. At first these are all pairs, each in random
  // order; later they are pairs that replace those with a block that could not be scored.
  std::vector<int32_t> next_blocks();

  // Takes the scores of the blocks asked for last, in their order.
  void score(const std::vector<Score>& blocks);

  bool is_over() const { return static_cast<int>(pairs_.size()) == wanted_; }
  // Progress with this many of the blocks asked for last done.
  double progress(size_t blocks) const {
    return (static_cast<double>(pairs_.size()) + static_cast<double>(blocks) / static_cast<double>(slots_.size())) /
           wanted_;
  }
  Claim claim() const;  // once it is over

 private:
  std::vector<int32_t> slots_;  // the winner and the baselines
  int wanted_;
  double error_;
  core::Rng rng_;
  std::vector<std::vector<double>> pairs_;  // logarithms of step times, in the order of the slots
};

}  // namespace gradtune::tuner
