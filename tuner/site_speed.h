// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The number of updates of one rank in a round of a job whose ranks are not equally fast (hooks/rounds.h): as many as
// fit into the time of the slowest rank. With each exchange, every rank tells all others its updates and the time that
// one takes. Each rank computes its own number. Plain data, without a clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gradtune::tuner {

class SiteSpeed {
 public:
  // The median of this many rounds decides, until as many others are known.
  static constexpr size_t kRounds = 9;

  struct Told {
    int64_t updates = 0;   // since the last exchange, at most kMostUpdatesARound
    double update_ms = 0;  // one update in the round before; 0: not known
  };
  // In one number. Times have whole microseconds.
  static uint64_t pack(const Told& told);

  // The factor of a rank's change in a mean over ranks that is weighted with their updates.
  static double weight(const Told& own, std::span<const uint64_t> all);

  // Takes what this rank and all ranks told with an exchange. A round in which a time is not known has no effect.
  void learn(const Told& own, std::span<const uint64_t> all);

  // This rank's updates in a round in which the slowest rank makes `updates`: at least as many, at most `most`.
  int64_t updates(int64_t updates, int64_t most) const;

 private:
  std::vector<double> ratios_;  // slowest to own, of the rounds since the last decision
  double ratio_ = 1;
};

}  // namespace gradtune::tuner
