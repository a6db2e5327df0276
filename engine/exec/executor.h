// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs strategies on one rank, with real threads. Each thread has a class that holds what it owns:
// - The communication thread issues all collectives (communication_thread.h).
// - The thread that runs backward does the operations with placement `device` (training_thread.h).
// - The host thread does those with placement `host` (host_thread.h).
//
// They share what shared.h names. The first two take turns to report events to the scheduler and carry out its
// actions (event_handler.h).
//
// All functions are called by the thread that runs backward, except that tensor_ready may come from another thread
// as long as calls do not overlap. In steady state that thread allocates nothing and no lock is contended on it.
//
// Errors are final: after the first one the communicators are aborted, and every later call returns that error. The
// same holds for exceptions in a step, on any thread: from compressors, communicators, the control word or the
// alarm, or for lack of memory. Only programmers' errors in calls between steps are thrown to the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/comm/groups.h"
#include "engine/core/clock.h"
#include "engine/core/gradient_table.h"
#include "engine/core/strategy.h"
#include "engine/exec/communication_thread.h"
#include "engine/exec/event_handler.h"
#include "engine/exec/executor_options.h"
#include "engine/exec/host_thread.h"
#include "engine/exec/shared.h"
#include "engine/exec/strategy_runner.h"
#include "engine/exec/training_thread.h"

namespace gradtune::exec {

class Executor final : public StrategyRunner {
 public:
  using ControlWord = exec::ControlWord;

  Executor(const comm::Groups& groups, const core::Clock& clock, const ExecutorOptions& options,
           ControlWord control_word);
  ~Executor() override;

  // Ends the threads; within a step it also aborts the communicators. Work in progress still completes into the
  // executor. So the communicators have to be destroyed between this call and the executor's destruction, and after
  // them the memory that they work on.
  void stop();

  // As in Workspace.
  void set_gradients(const core::GradientTable& table, const Arenas& arenas);

  // Called between steps; they wait for buckets of the last step that are still under way. prepare() compiles,
  // allocates and tests the codecs on a small input; an error leaves everything unchanged.
  core::Status prepare(int32_t slot, const core::Strategy& strategy) override;
  void drop(int32_t slot) override;
  void run(int32_t slot) override;     // on trial
  void commit(int32_t slot) override;  // for good: residuals parked for other strategies drain (feedback.h)

  // A step consists of begin_step, tensor_ready once for each tensor, finish_backward and conclude; then await for
  // each bucket that is due at the next forward pass. The next begin_step, or drain, settles the step: if it counts,
  // its changes of residuals and state become permanent.
  core::Status begin_step();
  // A gradient outside of its place in the arena is copied there piece by piece, each piece just before its bucket
  // starts. So the first bucket of a large tensor does not wait for all of it. Buckets that work on lists read the
  // gradient in its original place. Returns true if the arrived memory is no longer needed; otherwise it must stay
  // unchanged until finish_backward returns.
  bool tensor_ready(int32_t tensor, const Arrived& arrived = {});
  // Between the last tensor_ready and finish_backward: does the operations that are left to the calling thread now.
  void advance() { training_.do_operations(); }
  // Waits for the control word and for every bucket that is due at the end of backward.
  core::Status finish_backward();
  // `finite` is the reduced word's result: true if all ranks were finite. After the call the gradients of the
  // buckets due at the end of backward are averages, or as Workspace::conclude leaves them. Returns true if the step
  // counts.
  core::Result<bool> conclude(bool finite) override;
  // True if this rank may wait for the bucket at any time: other ranks, which may wait for it now, need nothing from
  // the calling thread (goes_on_alone). All ranks should wait for any other bucket at the same point.
  bool may_be_left(int32_t bucket) const { return may_be_left_[static_cast<size_t>(bucket)] != 0; }
  // Waits for a bucket that is due at the next forward pass, and does the device operations that are left to the
  // calling thread. A second call returns at once.
  core::Status await(int32_t bucket);
  // Waits for all work in progress, and settles the step.
  core::Status drain();

  // The times of the last step, as far as it is done.
  const StepTimes& times() const { return training_.times(); }
  // The times of the last step, bucket after bucket, one for each operation of the program. Valid after
  // finish_backward; for buckets that are due later, after drain.
  const std::vector<OpTime>& op_times() const { return shared_.trace.times(); }
  const Program& program() const { return *shared_.workspace.program(); }
  // Compiles a strategy for gradients of another table, without preparing it.
  core::Result<std::unique_ptr<Program>> compile(const core::Strategy& strategy,
                                                 const core::GradientTable& table) const;
  Residuals& residuals() { return shared_.workspace.residuals(); }
  // The same as in Workspace, between steps.
  Carried carried(bool residuals = false, bool parked = false);
  int64_t memory_bytes(core::Space space = core::Space::host) const { return shared_.workspace.memory_bytes(space); }
  const core::Strategy& strategy() const override { return shared_.workspace.program()->strategy; }
  // True if a part of that tensor travels with error feedback under the strategy in force.
  bool keeps_residual(int32_t tensor) const;
  // The loss of that bucket's compression in the last step, on this rank; valid after conclude. For a bucket that is
  // due at the next forward pass, it is the loss of the step before that.
  core::BucketLoss loss(int32_t bucket) const override { return shared_.workspace.loss(bucket); }
  // The same as in Workspace, after conclude.
  Workspace::Listed listed(int32_t tensor) const { return shared_.workspace.listed(tensor); }
  void lay_out_average(int32_t tensor) { shared_.workspace.lay_out_average(tensor); }
  // True if residuals were added to a part of that tensor in the last step, on this rank.
  bool drained(int32_t tensor) const;

 private:
  core::Status prepare_slot(int32_t slot, const core::Strategy& strategy);
  template <typename Change>
  void change(const Change& change);

  void start_threads(size_t most_events);
  void end_threads();
  void begin_program();

  bool has_failed() const { return shared_.failure.has_happened(); }
  core::Status failure();
  core::Status failed_with(core::Error error);
  core::Status await_fences();  // of buckets due at the end of backward
  core::Status health() const;  // of communicators whose fences have passed

  Shared shared_;
  EventHandler handler_{shared_};
  TrainingThread training_{shared_, handler_};
  CommunicationThread communication_;
  HostThread host_{shared_};

  enum class Phase : uint8_t { settled, running, averaged, concluded } phase_ = Phase::settled;
  std::vector<uint8_t> may_be_left_;  // per bucket
  bool is_stopped_ = false;
};

}  // namespace gradtune::exec
