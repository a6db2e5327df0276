// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The first look at a job: the speed of its baselines, the baseline for measuring gains, and the time that ranks
// compute. It leaves open how blocks are run.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/core/measurement.h"
#include "tuner/schedule.h"

namespace gradtune::tuner {

class Observation {
 public:
  // Slots 0 ... baselines - 1, one or two of them.
  explicit Observation(int baselines) : baselines_(baselines) {}

  // The slots of the next blocks in the order in which they are to run: a single baseline once, or two of them twice
  // each. Their order makes load that comes and stays, or goes, hit both.
  std::vector<int32_t> next_blocks() const;
  void record(const core::StepReport& report);
  void score(const std::vector<Score>& blocks);

  bool is_over() const;
  int32_t baseline() const;  // the faster one
  // The other baseline, if it may be the faster one: not all of its blocks took clearly longer.
  std::optional<int32_t> rival() const;
  double baseline_ms() const { return step_ms(baseline()); }
  double compute_max_ms() const;  // medians of the slowest and of the fastest rank
  double compute_min_ms() const;

 private:
  double step_ms(int32_t slot) const;
  int32_t baselines_;
  std::vector<std::vector<double>> blocks_ms_ = std::vector<std::vector<double>>(static_cast<size_t>(baselines_));
  std::vector<double> compute_max_ms_, compute_min_ms_;
};

}  // namespace gradtune::tuner
