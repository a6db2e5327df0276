// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/job.h"

#include <utility>

#include "tests/sim/group.h"

namespace gradtune::sim {

Job::Job(JobOptions options) : options_(std::move(options)), world_(options_.world) {
  for (size_t r = 0; r < options_.slowdown.size(); ++r) {
    RankModel model = options_.world.rank;
    model.slowdown = options_.slowdown[r];
    world_.set_rank(static_cast<int>(r), model);
  }
  auto data = make_group(world_), control = make_group(world_);
  for (size_t r = 0; r < data.size(); ++r) {
    ranks_.push_back(std::make_unique<SimulatedRank>(world_, std::move(data[r]), std::move(control[r]), options_.rank,
                                                     r == 0 ? options_.leader : Leader()));
  }
  for (const Crash& crash : options_.crashes) {
    world_.at(crash.time_ns, -1, [this, crash] { world_.crash(crash.rank); });
  }
}

// Work in progress is dropped here: no rank waits for it, and nothing reports it.
Job::~Job() {
  for (int r = 0; r < size(); ++r) world_.crash(r);
}

void Job::run() {
  while (!is_over() && world_.run_next()) {
  }
}

bool Job::is_over() const {
  for (int r = 0; r < size(); ++r) {
    if (!rank(r).ended() && !world_.crashed(r)) return false;
  }
  return true;
}

}  // namespace gradtune::sim
