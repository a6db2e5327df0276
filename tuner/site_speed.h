// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The number of updates of one rank in a round of a job whose ranks are not equally fast (hooks/rounds.h): as many as
// fit into the time of the slowest rank. Each rank computes its own. Plain data, without a clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gradtune::tuner {

class SiteSpeed {
 public:
  // The median of this many rounds decides, until as many others are known.
  static constexpr size_t kRounds = 9;

  // A round in which an update took so long on this rank and on the slowest one. Times of 0 are ignored.
  void learn(double own_ms, double slowest_ms);

  // This rank's updates in a round in which the slowest rank makes `updates`: at least as many, at most `most`.
  int64_t updates(int64_t updates, int64_t most) const;

 private:
  std::vector<double> ratios_;  // slowest to own, of the rounds since the last decision
  double ratio_ = 1;
};

}  // namespace gradtune::tuner
