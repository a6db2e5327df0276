// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Whether step times have moved for good: CUSUM (Page 1954), in both directions, on the logarithms of block medians
// against the level after a commit. It works in physical units: charts in units of an estimated sigma alarm all the
// time if noise is correlated, skewed or has spikes. Leaves open what a change means and what to do about it.
#pragma once

#include <optional>
#include <vector>

namespace gradtune::tuner {

struct DriftOptions {
  double change = 0.10;      // the least change of a step time, as a share, that is worth an alarm
  int reference_steps = 50;  // from which the level and its noise are learned
  int block_steps = 0;       // 0: as many as the noise asks for
  double evidence = 2;       // changes that blocks together have to show beyond half of one each
};

class Drift {
 public:
  struct Alarm {
    double log_shift = 0;  // logarithm of the new level over the old one, as seen since it began to move; > 0: slower
  };

  explicit Drift(const DriftOptions& options = {});

  // Call for every step in order. After an alarm it learns the new level and goes on from there. It also learns anew if
  // later steps are half as noisy as those that it learned from, as a change may have fallen into these.
  std::optional<Alarm> record(double step_ms);

  // Steps in a block: the smallest odd number for which the deviation of block medians is at most a quarter of the
  // change that is looked for. If no block is long enough, a larger change is looked for. 0 while a level is learned.
  int block_steps() const { return level_ ? level_->block_steps : 0; }
  double log_change() const { return level_ ? level_->log_change : 0; }

 private:
  // Evidence for a change in one direction.
  struct Side {
    double sum = 0;
    double shift = 0;  // of the blocks since the sum left 0
    int blocks = 0;
    bool add(double shift, double log_change, double evidence);  // whether that is enough
  };
  struct Level {
    double log_ms;
    int block_steps;
    double log_change;  // that is looked for
  };
  Level level_of(const std::vector<double>& steps_ms) const;
  void learn(const Level& level);

  DriftOptions options_;
  std::optional<Level> level_;     // none while it is learned
  std::vector<double> window_ms_;  // as many steps as a level is learned from, again and again
  std::vector<double> block_ms_;
  Side slower_, faster_;
};

}  // namespace gradtune::tuner
