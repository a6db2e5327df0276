// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The executor of one simulated rank: the real core (engine/exec/scheduler.h) and workspace (engine/exec/workspace.h),
// pumped by events of a simulated world in place of the threads of exec::Executor. What differs: operations take the
// time that a model says; backward and waits are calls that do not return but tell when they are over; what late
// buckets have to do on the device is done beside forward; and there is neither a memory budget nor a self-test.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/compress/queue.h"
#include "engine/exec/executor.h"
#include "engine/exec/scheduler.h"
#include "engine/exec/strategy_runner.h"
#include "engine/exec/workspace.h"
#include "tests/engine/exec/gradient_arenas.h"
#include "tests/sim/lane.h"
#include "tests/sim/world.h"

namespace gradtune::sim {

// What an operation on n elements takes.
struct Cost {
  int64_t fixed_ns = 2'000;
  double element_ns = 0.5;
};

struct ExecutorModel {
  int64_t backward_ns = 4'000'000;  // of all tensors, each in proportion to its elements
  Cost device, host = {.fixed_ns = 10'000, .element_ns = 1};
  int64_t timeout_ms = 1'000;  // of every collective
};

class SimulatedExecutor final : public exec::StrategyRunner, private comm::CompletionSink {
 public:
  using ControlWord = std::function<std::span<double>(bool finite)>;
  using Done = std::function<void(core::Status)>;

  // `gradients` are the rank's. What is under way when the executor is destroyed must never be told.
  SimulatedExecutor(World& world, comm::Communicator& data, comm::Communicator& control,
                    const exec::GradientArenas& gradients, const ExecutorModel& model, ControlWord control_word);

  // Between steps, as with exec::Executor; but nothing waits here, so that late buckets must have been drained.
  core::Status prepare(int32_t slot, const core::Strategy& strategy) override;
  void drop(int32_t slot) override { settle(), workspace_.drop(slot); }
  void run(int32_t slot) override { settle(), workspace_.run(slot); }
  void commit(int32_t slot) override { settle(), workspace_.commit(slot); }

  // A whole backward pass, which takes `pace` times as long as the model says: tensors become ready in the table's
  // order. `done` is told when the averages that are due by then and the control word are there, or of the first error,
  // after which the communicators are aborted and nothing more happens here.
  void backward(double pace, Done done);
  core::Result<bool> conclude(bool finite) override;
  // As exec::Executor, once the step is concluded: told at once where nothing is under way. One wait at a time.
  void await(int32_t bucket, Done done);
  void drain(Done done);
  bool is_under_way() const { return !is_finished_; }

  core::BucketLoss loss(int32_t bucket) const override { return workspace_.loss(bucket); }
  const exec::StepTimes& times() const { return times_; }
  const core::Strategy& strategy() const override { return workspace_.program()->strategy; }
  exec::Values residual(exec::Which which = exec::Which::all) {
    settle();
    return gradients_.read(*workspace_.program(), workspace_.residuals(), which);
  }

 private:
  void next_tensor();
  void tensor_ready(int32_t tensor, size_t first_piece);
  void act(std::vector<exec::Action> actions);
  void compute(int32_t bucket, int32_t op);
  int64_t cost_ns(int32_t bucket, int32_t op) const;

  void complete(uint64_t token, core::Status status, core::Fence) override;
  void completed(uint64_t token, const core::Status& status);
  void finish(core::Status status);
  void settle();
  void go_on_waiting();

  World& world_;
  comm::Communicator& data_;
  comm::Communicator& control_;
  const exec::GradientArenas& gradients_;
  const ExecutorModel model_;
  const ControlWord control_word_;
  const int rank_;
  const std::unique_ptr<compress::HostQueue> queue_ = compress::make_serial_queue();

  exec::Workspace workspace_;

  // The step under way.
  exec::Scheduler scheduler_;
  bool finite_ = true;         // as far as operations are done
  bool is_concluded_ = false;  // and not settled
  bool is_finished_ = true;    // every bucket is done
  std::vector<bool> is_late_done_;
  std::optional<core::Error> failure_;
  struct Wait {
    int32_t bucket;  // -1: for all
    Done done;
  };
  std::optional<Wait> wait_;
  Lane device_, host_;
  Done done_;
  double pace_ = 1;
  int32_t next_tensor_ = 0;
  std::optional<int64_t> waiting_since_ns_;  // since the last tensor was ready and nothing was left to do at once
  double late_ops_ms_ = 0;                   // that were done since then
  exec::StepTimes times_;
};

}  // namespace gradtune::sim
