// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Confirming the winner of a race: fresh pairs of blocks, winner and baseline, as many as were fixed beforehand, and
// one look at the end. The only source of the gain that is claimed. What it says rests on nothing but the order inside
// pairs, which is drawn at random: load that comes and goes, for longer than a block or than all of them, hits either of
// both as likely. Where two baselines may be the faster one, both have a block in each pair, and the winner has to be
// faster than either. Leaves open how blocks are run; those of a pair have to be alike.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/core/rng.h"
#include "tuner/comparison.h"
#include "tuner/race.h"
#include "tuner/schedule.h"

namespace gradtune::tuner {

// The probability with which a confirmation, the first, the second, ... of a run, may take a strategy for faster that is
// not: together at most 5 %, however often it is tuned again (an error spending sequence: most of it for the first,
// and for the later ones what falls with the square of their number, for which a few more pairs are enough).
double allowed_error(int earlier_confirmations);

// The smallest of 6, 8, 10 and 12 pairs that can prove a gain with that error against so many baselines and give 85 % power
// for what the race saw of the winner (a standard error less, as winners look better than they are); otherwise
// most_pairs: a small gain may be missed then, but pairs of two strategies that are about as fast cost next to nothing.
int pairs_for(const Race::Winner& winner, double error, size_t baselines);
int most_pairs(double error);  // 12, and more where an error takes that; where there was no race to estimate by

// Times are geometric means over blocks. The interval has no end where there are too few pairs for one.
struct Claim : Comparison {
  bool confirmed = false;  // the one-sided bound of the gain is above 0
  int32_t baseline = 0;    // the faster one
  int pairs = 0;
};

class Confirmation {
 public:
  Confirmation(int32_t winner, const std::vector<int32_t>& baselines, int pairs, double error, core::Rng rng);

  // The slots of the next blocks in the order in which they are to run: at first all pairs, each in random order, later
  // what replaces those of which a block could not be scored.
  std::vector<int32_t> next_blocks();

  // The blocks asked for last, in their order.
  void score(const std::vector<Score>& blocks);

  bool is_over() const { return static_cast<int>(pairs_.size()) == wanted_; }
  // With so many of the blocks asked for last done.
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
