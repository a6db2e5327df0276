// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Decides if step times have moved for good. It uses CUSUM (Page 1954), in both directions, on the logarithms of
// block medians against the level after a commit. It works in physical units: charts in units of an estimated sigma
// alarm all the time if noise is correlated, skewed or has spikes. It leaves open what a change means and what to do
// about it.
#pragma once

#include <optional>
#include <vector>

namespace gradtune::tuner {

struct DriftOptions {
  double change = 0.10;      // the smallest relative change of a step time that deserves an alarm
  int reference_steps = 50;  // steps from which the level and its noise are learned
  int block_steps = 0;       // 0: as many as the noise requires
  double evidence = 2;       // changes that all blocks together must show beyond half a change each
};

class Drift {
 public:
  struct Alarm {
    double log_shift = 0;  // logarithm of the new level over the old one, since it began to move; > 0: slower
  };

  explicit Drift(const DriftOptions& options = {});

  // Call for every step in order. After an alarm it learns the new level and continues from there. It also learns
  // anew if later steps are half as noisy as those of the reference, as a change may have fallen into the reference.
  std::optional<Alarm> record(double step_ms);

  // Steps in a block: the smallest odd number for which the deviation of block medians is at most a quarter of the
  // change to find. If no block is long enough, only a larger change can be found. 0 while a level is learned.
  int block_steps() const { return level_ ? level_->block_steps : 0; }
  double log_change() const { return level_ ? level_->log_change : 0; }

 private:
  // Evidence for a change in one direction.
  struct Side {
    double sum = 0;
    double shift = 0;  // sum over the blocks since the sum left 0
    int blocks = 0;
    bool add(double shift, double log_change, double evidence);  // returns true if that is enough
  };
  struct Level {
    double log_ms;
    int block_steps;
    double log_change;  // the change to find
  };
  Level level_of(const std::vector<double>& steps_ms) const;
  void learn(const Level& level);

  DriftOptions options_;
  std::optional<Level> level_;     // none while it is being learned
  std::vector<double> window_ms_;  // as many steps as a level is learned from, repeatedly
  std::vector<double> block_ms_;
  Side slower_, faster_;
};

}  // namespace gradtune::tuner
