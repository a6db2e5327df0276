// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The executor of one simulated rank: the real core (engine/exec/scheduler.h) and workspace
// (engine/exec/workspace.h). Events of a simulated world pump them in place of the threads of exec::Executor. There
// are four differences. Operations take the time of a model. Backward and waits are calls that return at once and
// report their end. Device work for late buckets runs beside forward. There is neither a memory budget nor a
// self-test.
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
#include "tuner/driver/pass_times.h"

namespace gradtune::sim {

// The time of an operation on n elements.
struct Cost {
  int64_t fixed_ns = 2'000;
  double element_ns = 0.5;
};

struct ExecutorModel {
  int64_t backward_ns = 4'000'000;  // for all tensors, each in proportion to its elements
  Cost device, host = {.fixed_ns = 10'000, .element_ns = 1};
  int64_t timeout_ms = 1'000;  // of every collective
};

class SimulatedExecutor final : public exec::StrategyRunner, private comm::CompletionSink {
 public:
  using ControlWord = std::function<std::span<double>(bool finite)>;
  using Done = std::function<void(core::Status)>;

  // `gradients` are the rank's. Work in progress when the executor is destroyed must never be reported.
  SimulatedExecutor(World& world, comm::Communicator& data, comm::Communicator& control,
                    const exec::GradientArenas& gradients, const ExecutorModel& model, ControlWord control_word);

  // Call between steps, as with exec::Executor; but nothing waits here, so late buckets must have been drained.
  core::Status prepare(int32_t slot, const core::Strategy& strategy) override;
  void drop(int32_t slot) override { settle(), workspace_.drop(slot); }
  void run(int32_t slot) override { settle(), workspace_.run(slot); }
  void commit(int32_t slot) override { settle(), workspace_.commit(slot); }

  // A whole backward pass, which takes `pace` times as long as the model says: tensors become ready in the table's
  // order. `done` is called when the averages due by then and the control word have arrived, or at the first error.
  // After an error the communicators are aborted and nothing more happens here.
  void backward(double pace, Done done);
  core::Result<bool> conclude(bool finite) override;
  // Like exec::Executor, once the step is concluded: `done` is called at once if nothing is under way. One wait at a
  // time.
  void await(int32_t bucket, Done done);
  void drain(Done done);
  bool is_under_way() const { return !is_finished_; }

  core::BucketLoss loss(int32_t bucket) const override { return workspace_.loss(bucket); }
  const exec::StepTimes& times() const { return times_; }
  // The times at which the gradients of the pass were ready, without those of operations that ran in between.
  std::vector<tuner::ReadyTime> ready_times() const;
  const core::Strategy& strategy() const override { return workspace_.program()->strategy; }
  exec::Values residual(exec::Which which = exec::Which::all) {
    settle();
    return gradients_.read(*workspace_.program(), workspace_.residuals(), which);
  }

 private:
  void next_tensor();
  void saw_ready(int32_t tensor);
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
  bool finite_ = true;         // over the operations done so far
  bool is_concluded_ = false;  // but not settled
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
  std::optional<int64_t> waiting_since_ns_;  // since the last tensor was ready and no immediate work was left
  double late_ops_ms_ = 0;                   // time of operations since then
  exec::StepTimes times_;
  std::vector<tuner::ReadyTime> ready_;  // since the world's start
};

}  // namespace gradtune::sim
