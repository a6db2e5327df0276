// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs strategies on one rank, with real threads. They tell the scheduler (scheduler.h) what happened, and do what it
// answers:
//   the communication thread          issues all collectives
//   the thread that runs backward     does the operations with placement `device`
//   the host thread                   does those with placement `host`, one after the other, on all the workers of a
//                                     oneTBB arena
//
// What happened is told to the scheduler by the communication thread; but once the host has all gradients, by the one
// that runs backward where that has nothing else to do: a hand-over to a thread that sleeps takes several microseconds.
//
// Who calls what: everything here is called by the thread that runs backward, except that tensor_ready may come from
// another one as long as calls do not overlap. In steady state nothing is allocated and no lock is contended on that
// thread.
//
// Errors are final: after the first one the communicators are aborted, and every later call returns that error. So is
// what is thrown in a step, by whatever thread: by compressors, communicators, the control word, the alarm, or where
// there is no memory. Only programmers' errors of calls between steps are thrown to the caller.
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
  int host_threads = 0;          // 0: placement `host` is refused; where there is a device it has the host thread alone
  int64_t timeout_ms = 300'000;  // of every collective
  int64_t memory_budget_bytes = INT64_MAX;  // residuals and pool, in each space
  uint64_t seed = 0;                        // of random compressors
  Device* device = nullptr;                 // of gradients that are not the host's; outlives the executor
  // Asked now and then while a step waits: an error when another rank has failed. A transport only tells those that
  // wait for the dead rank itself.
  std::function<core::Status()> alarm = {};
  // How long the threads may take to end; then the process ends (engine/core/bounded_wait.h).
  int64_t most_end_ms = core::kMostWaitMs;
};

// Where the thread that runs backward spent this step's time on gradtune's behalf.
struct StepTimes {
  double encode_ms = 0;  // copy, scale, load, encode on the device
  double decode_ms = 0;  // decode, store on the device
  double wait_ms = 0;    // nothing to do until a collective or the host was done: exposed communication
  double comm_ms = 0;    // of all collectives, added up, whoever waited for them

  StepTimes operator+(const StepTimes& other) const {
    return {encode_ms + other.encode_ms, decode_ms + other.decode_ms, wait_ms + other.wait_ms, comm_ms + other.comm_ms};
  }
  StepTimes operator-(const StepTimes& other) const {
    return {encode_ms - other.encode_ms, decode_ms - other.decode_ms, wait_ms - other.wait_ms, comm_ms - other.comm_ms};
  }
};

class Executor final : public StrategyRunner, private comm::CompletionSink, private EndListener {
 public:
  // Called on the communication thread once per step, when it is known whether this rank's numbers are finite: returns
  // this rank's control word. When finish_backward returns, the word reduced by maximum is there.
  using ControlWord = std::function<std::span<double>(bool finite)>;

  Executor(const comm::Groups& groups, const core::Clock& clock, const ExecutorOptions& options,
           ControlWord control_word);
  ~Executor() override;

  // Ends the threads; within a step it aborts the communicators. What is under way completes into the executor, so
  // between this call and its end the communicators have to be destroyed, and after them the memory that they work on.
  void stop();

  // As in Workspace.
  void set_gradients(const core::GradientTable& table, const Arenas& arenas);

  // Between steps; where buckets of the last one are still under way, these wait for them. Preparing compiles,
  // allocates and tests the codecs on a small input; an error leaves all as it was.
  core::Status prepare(int32_t slot, const core::Strategy& strategy) override;
  void drop(int32_t slot) override;
  void run(int32_t slot) override;     // on trial
  void commit(int32_t slot) override;  // for good: residuals parked for other strategies drain (Workspace::commit)

  // A step: begin, each tensor ready once, finish_backward, conclude; then await for each bucket that is due at the
  // next forward pass. The next begin_step, or drain, settles it: of a step that counts, what became of residuals and
  // state holds.
  core::Status begin_step();
  // What is not in its place in the arena is brought there piece by piece, each piece just before its bucket starts:
  // the first bucket of a large tensor does not wait for all of it. Buckets that work on lists take it from where it
  // is. Returns whether what arrived is needed no longer: else it stays as it is until finish_backward returns.
  bool tensor_ready(int32_t tensor, const Arrived& arrived = {});
  // Waits for the control word and for every bucket that is due at the end of backward.
  core::Status finish_backward();
  // Told whether all ranks were finite by the reduced word; the gradients of these buckets are averages then, or as
  // Workspace::conclude has them. Returns whether the step counts.
  core::Result<bool> conclude(bool finite) override;
  // Whether a bucket may be waited for when this rank likes: other ranks, which may wait for it now, need nothing of
  // the calling thread (goes_on_alone). Any other should be waited for where all ranks do.
  bool may_be_left(int32_t bucket) const { return may_be_left_[static_cast<size_t>(bucket)] != 0; }
  // Waits for a bucket that is due at the next forward pass, with the work on the device that others left to the
  // calling thread. A second call returns at once.
  core::Status await(int32_t bucket);
  // Waits for all that is under way, and settles the step.
  core::Status drain();

  // Of the last step, as far as it is done.
  const StepTimes& times() const { return times_; }
  // Of the last step, bucket after bucket, as many as the program has operations. After finish_backward; of buckets
  // that are due later after drain.
  const std::vector<OpTime>& op_times() const { return op_times_; }
  const Program& program() const { return *workspace_.program(); }
  Residuals& residuals() { return workspace_.residuals(); }
  // As in Workspace, between steps.
  Carried carried(bool residuals = false, bool parked = false);
  int64_t memory_bytes(core::Space space = core::Space::host) const { return workspace_.memory_bytes(space); }
  const core::Strategy& strategy() const override { return workspace_.program()->strategy; }
  // Whether a part of that tensor travels with error feedback under the strategy in force.
  bool keeps_residual(int32_t tensor) const;
  // What that bucket's compression lost in the last step, on this rank; after conclude. Of a bucket that is due at the
  // next forward pass: in the step before that.
  core::BucketLoss loss(int32_t bucket) const override { return workspace_.loss(bucket); }
  // As in Workspace, after conclude.
  Workspace::Listed listed(int32_t tensor) const { return workspace_.listed(tensor); }
  void lay_out_average(int32_t tensor) { workspace_.lay_out_average(tensor); }
  // Whether residuals were added to a part of that tensor in the last step, on this rank.
  bool drained(int32_t tensor) const;

 private:
  struct Event {
    enum class Kind : uint8_t { begin, bucket_ready, op_done, op_ended, control_done, hang, stop } kind;
    int32_t bucket = -1;
    int32_t op = -1;
  };

  // Of the collective at `op` of `bucket`; -1: of the control word.
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
  // What body throws there becomes the failure; returns whether nothing was.
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
  core::Status await_fences() const;  // of what is due at the end of backward
  core::Status health() const;        // of communicators, as far as fences have passed
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

  // Of the thread that runs backward.
  enum class Phase : uint8_t { settled, running, averaged, concluded } phase_ = Phase::settled;
  std::unique_ptr<compress::HostQueue> device_queue_;
  StepTimes times_;
  int64_t step_ = 0;                 // that runs, counted from 1
  size_t missing_buckets_ = 0;       // of which not all gradients are there
  std::vector<core::Fence> ready_;   // per bucket on a device: its gradients are there
  std::vector<int64_t> arrived_ns_;  // per bucket: how long it took to scale what arrived so far

  // Of the thread whose turn it is to handle events.
  Turn turn_;
  Scheduler scheduler_;
  std::vector<Action> actions_;
  bool finite_ = true;               // this rank's numbers, as far as operations are done
  std::vector<OpFences> op_fences_;  // of operations on a device

  // Of the host thread, null without one.
  std::unique_ptr<compress::HostQueue> host_queue_;

  std::unique_ptr<EventRing<Event>> events_;      // to be handled
  std::unique_ptr<EventRing<Start>> starts_;      // to the communication thread, in the order of the scheduler
  std::unique_ptr<EventRing<Event>> device_ops_;  // to the thread that runs backward
  std::unique_ptr<EventRing<Event>> host_ops_;    // to the host thread
  Doorbell communication_bell_, device_bell_, host_bell_;
  std::atomic<Doorbell*> handler_bell_ = &communication_bell_;  // of the thread that is to handle events
  // How far the step is; whoever handles events tells the thread that runs backward.
  enum class Done : uint8_t { nothing, backward, all };
  std::atomic<Done> done_ = Done::all;
  std::vector<std::atomic<bool>> late_done_;  // per bucket: due at the next forward pass, and done
  std::vector<uint8_t> may_be_left_;          // per bucket
  std::vector<core::Fence> fences_;           // per bucket: the end of its last operation
  std::atomic<bool> failed_ = false;
  bool stopped_ = false;
  std::atomic<int64_t> progress_ = 0;  // events that were handled
  std::vector<OpTime> op_times_;
  std::mutex error_mutex_;
  core::Error error_{};
  core::BoundedThread communication_thread_, host_thread_;
};

}  // namespace gradtune::exec
