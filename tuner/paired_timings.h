// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The operation times that a cost model learns from, on links with a delay. One rank is timed, and it may be ahead of
// its peers by up to the delay, or behind them. Ranks change places in each step: a collective takes up to two delays
// in one step, and none in the next, in which the peers' data is there already. So the means of two successive steps
// are learned, from which the lead of a rank cancels.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "policies/cost/cost_table.h"
#include "policies/cost/knowledge.h"

namespace gradtune::tuner {

class PairedTimings {
 public:
  // Without a delay of 5 ms or more, each step is learned as it is.
  explicit PairedTimings(const policies::IdleLinks& links);

  // Takes the times of a step under the strategy of a slot. Returns what is to be learned, or nothing while the next
  // step's times are awaited. A step without a successor is not learned.
  std::optional<std::vector<policies::TimedOp>> add(int32_t slot, int64_t step, std::vector<policies::TimedOp> ops);

 private:
  struct Waiting {
    int32_t slot;
    int64_t step;
    std::vector<policies::TimedOp> ops;
  };

  bool are_paired_;
  std::optional<Waiting> waiting_;
};

}  // namespace gradtune::tuner
