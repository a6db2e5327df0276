// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs strategies on one rank, with real threads. The threads report events to the scheduler (scheduler.h), and
// carry out its actions:
// - The communication thread issues all collectives.
// - The thread that runs backward does the operations with placement `device`.
// - The host thread does those with placement `host`, one after the other, on all the workers of a oneTBB arena.
//
// The communication thread reports the events to the scheduler. Once the host has all gradients, the thread that
// runs backward does so while it has nothing else to do: a hand-over to a sleeping thread takes several
// microseconds.
//
// All functions are called by the thread that runs backward, except that tensor_ready may come from another thread
// as long as calls do not overlap. In steady state that thread allocates nothing and no lock is contended on it.
//
// Errors are final: after the first one the communicators are aborted, and every later call returns that error. The
// same holds for exceptions in a step, on any thread: from compressors, communicators, the control word or the
// alarm, or for lack of memory. Only programmers' errors in calls between steps are thrown to the caller.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/comm/groups.h"
#include "engine/compress/queue.h"
#include "engine/core/bounded_wait.h"
#include "engine/core/clock.h"
#include "engine/core/gradient_table.h"
#include "engine/core/strategy.h"
#include "engine/exec/event_ring.h"
#include "engine/exec/op_times.h"
#include "engine/exec/scheduler.h"
#include "engine/exec/strategy_runner.h"
#include "engine/exec/workspace.h"

namespace gradtune::exec {

struct ExecutorOptions {
  int host_threads = 0;          // 0: placement `host` is refused; with a device, only the host thread itself works
  int64_t timeout_ms = 300'000;  // of every collective
  int64_t memory_budget_bytes = INT64_MAX;  // for residuals and pool, in each space
  uint64_t seed = 0;                        // of random compressors
  Device* device = nullptr;                 // of gradients outside of the host's memory; outlives the executor
  // Called now and then while a step waits; returns an error if another rank has failed. A transport only tells the
  // ranks that wait for the dead rank itself.
  std::function<core::Status()> alarm = {};
  // The longest time that the threads may take to end; after it the process ends (engine/core/bounded_wait.h).
  int64_t most_end_ms = core::kMostWaitMs;
};

// The time that the thread that runs backward spent on gradtune's behalf in this step.
struct StepTimes {
  double encode_ms = 0;  // copy, scale, load, encode on the device
  double decode_ms = 0;  // decode, store on the device
  double wait_ms = 0;    // waiting for a collective or the host with nothing else to do: exposed communication
  double comm_ms = 0;    // the total of all collectives, whoever waited for them

  StepTimes operator+(const StepTimes& other) const {
    return {encode_ms + other.encode_ms, decode_ms + other.decode_ms, wait_ms + other.wait_ms, comm_ms + other.comm_ms};
  }
  StepTimes operator-(const StepTimes& other) const {
    return {encode_ms - other.encode_ms, decode_ms - other.decode_ms, wait_ms - other.wait_ms, comm_ms - other.comm_ms};
  }
};

class Executor final : public StrategyRunner, private comm::CompletionSink, private EndListener {
 public:
  // Called on the communication thread once per step, when it is known if this rank's numbers are finite; returns
  // this rank's control word. When finish_backward returns, the word holds its maximum over ranks.
  using ControlWord = std::function<std::span<double>(bool finite)>;

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
  void commit(int32_t slot) override;  // for good: residuals parked for other strategies drain (Workspace::commit)

  // A step consists of begin_step, tensor_ready once for each tensor, finish_backward and conclude; then await for
  // each bucket that is due at the next forward pass. The next begin_step, or drain, settles the step: if it counts,
  // its changes of residuals and state become permanent.
  core::Status begin_step();
  // A gradient outside of its place in the arena is copied there piece by piece, each piece just before its bucket
  // starts. So the first bucket of a large tensor does not wait for all of it. Buckets that work on lists read the
  // gradient in its original place. Returns true if the arrived memory is no longer needed; otherwise it must stay
  // unchanged until finish_backward returns.
  bool tensor_ready(int32_t tensor, const Arrived& arrived = {});
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
  const StepTimes& times() const { return times_; }
  // The times of the last step, bucket after bucket, one for each operation of the program. Valid after
  // finish_backward; for buckets that are due later, after drain.
  const std::vector<OpTime>& op_times() const { return op_times_; }
  const Program& program() const { return *workspace_.program(); }
  Residuals& residuals() { return workspace_.residuals(); }
  // The same as in Workspace, between steps.
  Carried carried(bool residuals = false, bool parked = false);
  int64_t memory_bytes(core::Space space = core::Space::host) const { return workspace_.memory_bytes(space); }
  const core::Strategy& strategy() const override { return workspace_.program()->strategy; }
  // True if a part of that tensor travels with error feedback under the strategy in force.
  bool keeps_residual(int32_t tensor) const;
  // The loss of that bucket's compression in the last step, on this rank; valid after conclude. For a bucket that is
  // due at the next forward pass, it is the loss of the step before that.
  core::BucketLoss loss(int32_t bucket) const override { return workspace_.loss(bucket); }
  // The same as in Workspace, after conclude.
  Workspace::Listed listed(int32_t tensor) const { return workspace_.listed(tensor); }
  void lay_out_average(int32_t tensor) { workspace_.lay_out_average(tensor); }
  // True if residuals were added to a part of that tensor in the last step, on this rank.
  bool drained(int32_t tensor) const;

 private:
  struct Event {
    enum class Kind : uint8_t { begin, bucket_ready, op_done, op_ended, control_done, hang, stop } kind;
    int32_t bucket = -1;
    int32_t op = -1;
  };

  // The collective at `op` of `bucket`; -1: the control word's.
  struct Start {
    int32_t bucket = -1;
    int32_t op = -1;
    bool finite = true;  // this rank's numbers
  };

  core::Status prepare_slot(int32_t slot, const core::Strategy& strategy);
  template <typename Change>
  void change(const Change& change);

  void start_threads(size_t most_events);
  void enter_device();
  void end_threads();
  void begin_program();

  void complete(uint64_t token, core::Status status, core::Fence done) override;
  void ended(uint64_t token) override;
  void post(const Event& event);
  void post_own(const Event& event);  // by the thread that runs backward
  void fail(core::Error error) noexcept;
  core::Status failure();
  // An exception from `body` becomes the failure. Returns true if there was none.
  template <typename Body>
  bool guarded(const char* where, const Body& body) noexcept;

  void communicate();  // the communication thread
  void start(const Start& what);
  bool handle_events();
  void work_on_host();  // the host thread
  void handle(const Event& event);
  void act(const Action& action);
  void run_on_host(const Event& event);
  void enqueue(int32_t bucket, int32_t op);
  core::Error hang() const;

  template <typename Condition>
  core::Status wait_until(const Condition& holds);
  core::Status await_fences() const;  // of buckets due at the end of backward
  core::Status health() const;        // of communicators whose fences have passed
  void read_times(core::Due due);
  void compute(int32_t bucket, int32_t op, compress::Queue& queue);
  void look_at(int32_t bucket, int32_t first_op, int32_t last_op);
  bool has_ended(const Event& done) const;
  bool run_on_device(int32_t bucket, int32_t op);
  OpTime& time_of(int32_t bucket, int32_t op) {
    return op_times_[static_cast<size_t>(workspace_.bucket(bucket).first_op + op)];
  }
  bool drain_device_ops();
  bool is_away(int32_t bucket) const { return workspace_.bucket(bucket).space != core::Space::host; }

  const comm::Groups groups_;
  const core::Clock& clock_;
  const ExecutorOptions options_;
  const ControlWord control_word_;

  Workspace workspace_;

  // State of the thread that runs backward.
  enum class Phase : uint8_t { settled, running, averaged, concluded } phase_ = Phase::settled;
  std::unique_ptr<compress::HostQueue> device_queue_;
  StepTimes times_;
  int64_t step_ = 0;                 // the current one, counted from 1
  size_t missing_buckets_ = 0;       // buckets whose gradients have not all arrived
  std::vector<core::Fence> ready_;   // per bucket on a device: passes when its gradients are ready
  std::vector<int64_t> arrived_ns_;  // per bucket: the time spent on scaling the pieces that arrived so far

  // State of the thread that has the turn to handle events.
  Turn turn_;
  Scheduler scheduler_;
  std::vector<Action> actions_;
  bool finite_ = true;               // this rank's numbers, over the operations done so far
  std::vector<OpFences> op_fences_;  // of operations on a device

  // State of the host thread; null without one.
  std::unique_ptr<compress::HostQueue> host_queue_;

  std::unique_ptr<EventRing<Event>> events_;      // to be handled
  std::unique_ptr<EventRing<Start>> starts_;      // to the communication thread, in the order of the scheduler
  std::unique_ptr<EventRing<Event>> device_ops_;  // to the thread that runs backward
  std::unique_ptr<EventRing<Event>> host_ops_;    // to the host thread
  Doorbell communication_bell_, device_bell_, host_bell_;
  std::atomic<Doorbell*> handler_bell_ = &communication_bell_;  // of the thread that handles events
  // The progress of the step, which the thread that handles events tells the thread that runs backward.
  enum class Done : uint8_t { nothing, backward, all };
  std::atomic<Done> done_ = Done::all;
  std::vector<std::atomic<bool>> late_done_;  // per bucket: due at the next forward pass, and done
  std::vector<uint8_t> may_be_left_;          // per bucket
  std::vector<core::Fence> fences_;           // per bucket: the end of its last operation
  std::atomic<bool> failed_ = false;
  bool stopped_ = false;
  std::atomic<int64_t> progress_ = 0;  // the number of events handled
  std::vector<OpTime> op_times_;
  std::mutex error_mutex_;
  core::Error error_{};
  core::BoundedThread communication_thread_, host_thread_;
};

}  // namespace gradtune::exec
