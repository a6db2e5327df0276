// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The step times of a machine that others load in bursts. Bursts and pauses last 0.2 to 20 s (log-uniform). So short
// steps see long stretches without a change, and long steps a change in every other block.
#pragma once

#include <cmath>

#include "engine/core/rng.h"

namespace gradtune::tuner {

struct Bursts {
  double shortest_s = 0.2, longest_s = 20;
  double least = 1.5, most = 4;  // factor on a step's time during a burst, drawn for each burst
  double wild = 0;               // spread of that factor: standard deviation of the logarithm of each step in a burst
  double cv = 0.05;              // of all steps
};

class BurstyMachine {
 public:
  BurstyMachine(const Bursts& bursts, core::Rng rng) : bursts_(bursts), rng_(rng), is_busy_(rng_.below(2) == 0) {
    begin();
    left_ms_ *= rng_.uniform();
  }

  // The time of a step that takes `quiet_ms` on a quiet machine.
  double step_ms(double quiet_ms) {
    double work_ms = quiet_ms * std::exp(bursts_.cv * rng_.normal() + (is_busy_ ? bursts_.wild * rng_.normal() : 0));
    double took_ms = 0;
    while (work_ms * factor() > left_ms_) {
      took_ms += left_ms_;
      work_ms -= left_ms_ / factor();
      is_busy_ = !is_busy_;
      begin();
    }
    left_ms_ -= work_ms * factor();
    return took_ms + work_ms * factor();
  }

 private:
  double log_uniform(double low, double high) { return low * std::pow(high / low, rng_.uniform()); }
  void begin() {
    left_ms_ = 1e3 * log_uniform(bursts_.shortest_s, bursts_.longest_s);
    slower_ = log_uniform(bursts_.least, bursts_.most);
  }
  double factor() const { return is_busy_ ? slower_ : 1; }

  Bursts bursts_;
  core::Rng rng_;
  bool is_busy_;
  double left_ms_ = 0, slower_ = 1;
};

}  // namespace gradtune::tuner
