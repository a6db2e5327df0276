// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Whether step times have moved for good: CUSUM, in both directions, on the logarithms of block medians against the
// level after a commit (Page 1954; in physical units, as charts in units of an estimated sigma alarm all the time where
// noise is correlated, skewed or has spikes). Leaves open what a change means and what to do about it.
#pragma once

#include <cstdint>
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
    int64_t steps = 0;     // recorded since the reference was learned
  };

  explicit Drift(const DriftOptions& options = {});

  // One step after the other. After an alarm it learns the new level, and goes on from there.
  std::optional<Alarm> record(double step_ms);

  // What the noise of the reference asked for: the odd number of steps in a block, the least for which the deviation of
  // block medians is at most a quarter of the change that is looked for; where no block is long enough, more than that
  // change is looked for. Of the last reference.
  int block_steps() const { return block_steps_; }
  double log_change() const { return log_change_; }

 private:
  // Evidence for a change in one direction.
  struct Side {
    double sum = 0;
    double shift = 0;  // of the blocks since the sum left 0
    int blocks = 0;
    bool add(double shift, double log_change, double evidence);  // whether that is enough
  };
  void learn();
  void fit_noise();

  DriftOptions options_;
  std::vector<double> steps_ms_;  // of the reference, then of the block under way
  bool is_learning_ = true;
  double reference_ = 0;  // log of ms
  int block_steps_ = 0;
  double log_change_ = 0;
  int64_t steps_ = 0;
  Side slower_, faster_;
};

}  // namespace gradtune::tuner
