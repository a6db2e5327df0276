// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A whole training job on simulated ranks: world, groups and ranks together, run until everything that can end has
// ended.
#pragma once

#include <memory>
#include <vector>

#include "tests/sim/simulated_rank.h"
#include "tests/sim/world.h"

namespace gradtune::sim {

struct Crash {
  int rank;
  int64_t time_ns;
};

struct JobOptions {
  WorldOptions world;
  std::vector<double> slowdown = {};  // of each rank's computation; empty: all are equally fast
  RankOptions rank = {};
  Leader leader = {};  // of rank 0
  std::vector<Crash> crashes = {};
};

class Job {
 public:
  explicit Job(JobOptions options);
  ~Job();

  // Runs until every rank has done its steps, failed or crashed, or until no events are left.
  void run();

  int size() const { return world_.size(); }
  const World& world() const { return world_; }
  const SimulatedRank& rank(int r) const { return *ranks_[static_cast<size_t>(r)]; }

 private:
  bool is_over() const;

  const JobOptions options_;
  World world_;
  std::vector<std::unique_ptr<SimulatedRank>> ranks_;
};

}  // namespace gradtune::sim
