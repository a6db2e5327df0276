// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A race by sequential halving. Every round runs one block of each remaining arm, in random order; then the worse
// half is out. Two arms are compared by the median, over rounds, of the log-ratios of their blocks. Drift that the
// blocks of a round share cancels, and one block that other load on the machine hit does not decide. The baseline
// runs in every round and is never eliminated. It leaves open how blocks are run, and if the winner is really faster
// than the baseline.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/core/compressor.h"
#include "engine/core/rng.h"
#include "tuner/schedule.h"

namespace gradtune::tuner {

// Strategies within 3 % of the best are ordered by other costs. A less lossy one is preferred. Among those of one
// fidelity within 1 %, the race prefers the one that is running already, or one with fewer buckets.
constexpr double kTie = 0.03;
constexpr double kNearTie = 0.01;

class Race {
 public:
  struct Arm {
    int32_t slot = 0;
    core::Fidelity fidelity = core::Fidelity::exact;
    size_t buckets = 0;
    bool is_running = false;  // in force before the race: stays if no arm of its fidelity is better by 1 %
    bool was_near = false;    // was the fastest before the race, or near it: stays to the end
  };
  struct Eliminated {
    int32_t slot;
    double behind;  // distance to the best, as a log-ratio; 0 if it could not be scored
  };
  struct Winner {
    int32_t slot;
    double effect;  // log-ratio of the baseline's step time to its own; above 0: faster
    double noise;   // standard deviation of the log-ratio of two blocks
    int rounds;
  };

  Race(const Arm& baseline, const std::vector<Arm>& arms, core::Rng rng);

  // The slots of the next round in the order in which they are to run.
  std::vector<int32_t> next_round();

  // Takes the blocks of that round and returns the eliminated arms: the worse half, and those that are too far
  // behind, took more than twice as long as the best, or could not be scored. An arm that was near the fastest before
  // stays if it could be scored, as its median over all rounds counts. A round without a score of the baseline does not
  // count.
  std::vector<Eliminated> score(const std::vector<Score>& round);

  bool is_over() const;
  double progress() const;
  std::vector<int32_t> slots_left() const;  // slots still in the race, the preferred one first

  // The preferred arm among those that look faster than the baseline by more than 1 % (3 % if it is lossier than the
  // baseline); nothing if there is none.
  std::optional<Winner> winner() const;

 private:
  struct State {
    Arm arm;
    std::vector<double> logs;  // of step times, one for each counted round
    double score = 0;          // log-ratio to the other arms that are in the race, and to the baseline
  };
  void compare();
  static std::vector<State> in_order_of_preference(std::vector<State> states);
  double noise() const;

  State baseline_;
  std::vector<State> arms_;  // still in the race
  core::Rng rng_;
  int rounds_ = 0;  // counted rounds
};

}  // namespace gradtune::tuner
