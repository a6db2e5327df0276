// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// One rank of a job whose computation is only recorded. Forward, backward and the optimizer's update sleep, and each
// gradient is written at its recorded ready time. Everything else is real: communicators, executor, compressors,
// network. So two cores can host many ranks, and strategies are compared on the same computation.
//
// Rank 0 leads: it decides what runs next, and the others follow.
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "engine/core/clock.h"
#include "engine/exec/executor.h"
#include "hooks/c10d/peers.h"
#include "policies/policy.h"

namespace gradtune::bench {

struct RecordedCompute {
  core::GradientTable table;  // in a job's layout, small tensors last; with recorded ready times
  double rest_ms = 0;         // of a step: the part outside of the first to the last ready gradient
};

// Consecutive steps under one strategy, on rank 0. Each has the time from its beginning to that of the next, and the
// time without gradtune's own work.
struct Block {
  std::vector<double> step_ms, compute_ms;
  std::vector<policies::TimedRun> timed;  // of a few steps, without the first one
};

class RecordedRank {
 public:
  RecordedRank(const c10::intrusive_ptr<c10d::ProcessGroup>& group, RecordedCompute compute, int host_threads);
  ~RecordedRank();

  int rank() const { return peers_.rank(); }
  core::Seat seat() const { return peers_.groups().seat; }
  // As for a job whose computation needs no core.
  policies::Machine machine() const {
    policies::Machine machine = peers_.machine();
    machine.cores.computing = 0;
    machine.cores.host = host_threads_;
    return machine;
  }

  // On rank 0: all ranks put the strategy in force and run that many steps.
  Block lead(const core::Strategy& strategy, int steps);
  void dismiss();  // the others return from follow
  // On the others.
  void follow();

  // On rank 0: the ready times of gradients since the first one, without the time of hooks between them, as means
  // over all steps. Also the share of their payloads that these compressors use for them.
  core::GradientTable seen(std::span<const core::CompressorSpec> codecs);

 private:
  Block run(const std::string& strategy_text, int steps);
  const core::TensorInfo& info(int32_t tensor) const { return compute_.table.tensors[static_cast<size_t>(tensor)]; }
  void put_in_force(const std::string& strategy_text);
  void step();

  const core::SteadyClock clock_;
  RecordedCompute compute_;
  exec::AlignedBytes gradients_, arena_;
  std::vector<int64_t> begin_;  // of each tensor, in elements
  std::vector<int32_t> order_;  // in which gradients become ready
  std::vector<double> ready_us_;
  int64_t steps_ = 0;
  Peers peers_;
  std::array<double, 1> word_{};
  exec::Executor executor_;
  int32_t slot_ = -1;
  const int host_threads_;
};

}  // namespace gradtune::bench
