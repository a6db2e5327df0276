// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Decides what an executor does next: a function of events, without clock, thread or socket. It receives events (the
// gradients of a bucket are ready, an operation is done) and answers with the next actions. Threads and the
// simulator call it, so the simulation and the training run the same code.
//
// It keeps these rules:
// - A bucket's operations run in the order of its program.
// - Collectives are issued in the strategy's order and in no other, at most `in_flight` at once.
// - At most core::most_held collectives in a row hold received data that is not decoded yet.
// - The step's control collective starts as soon as every bucket has done the operations that may find a number that
//   is not finite (BucketProgram::judged_ops), however many collectives were issued by then.
//
// An operation is "done" if the next one may follow. Work of the host has ended then. Work of a device has been
// queued, and its fence orders the later work; if the host has to know of its end (Op::is_told), it has ended too.
// The end of work that frees memory (Op::frees) is a separate event.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/exec/program.h"

namespace gradtune::exec {

struct Action {
  enum class Kind : uint8_t {
    run_device,     // operation `op` of `bucket`, by the thread that runs backward
    run_host,       // ... by oneTBB workers
    start,          // the collective at `op` of `bucket`
    control,        // the step's control collective
    late_done,      // `bucket`, which is due at the next forward pass, is done
    backward_done,  // the control collective and every bucket that is due at the end of backward are done
    finished,       // every bucket is done, and the control collective
  } kind;
  int32_t bucket = -1;
  int32_t op = -1;

  bool operator==(const Action&) const = default;
};

class Scheduler {
 public:
  // Begins a step of that program, which must outlive it. Allocates only if the program has more buckets than any
  // before.
  void begin(const Program& program);

  // Events. Each appends to `actions` the actions to take now, in this order.
  //
  // All tensors of the bucket are ready, and the operations before `op` are done already: the thread that finishes a
  // bucket's last gradient runs its leading `device` operations itself (see leading_device_ops).
  void bucket_ready(int32_t bucket, int32_t op, std::vector<Action>& actions);
  void op_done(int32_t bucket, int32_t op, std::vector<Action>& actions);
  void op_ended(int32_t bucket, int32_t op,
                std::vector<Action>& actions);  // for operations on a device that free memory
  void control_done(std::vector<Action>& actions);

  // For a step without buckets, whose control collective may start at once.
  void start(std::vector<Action>& actions) { start_control(actions); }

  int in_flight() const { return in_flight_; }

  // True if both have the same state, of the same program.
  bool operator==(const Scheduler&) const = default;

 private:
  void advance(int32_t bucket, std::vector<Action>& actions);
  void judge(int32_t bucket, std::vector<Action>& actions);
  void start_control(std::vector<Action>& actions);
  void issue(std::vector<Action>& actions);
  void finish_if_done(std::vector<Action>& actions);

  struct State {
    int32_t op = 0;          // the next operation
    bool may_issue = false;  // it is a collective and waits for its turn
    bool judged = false;
    int32_t ended = -1;  // the last operation whose end was a separate event

    bool operator==(const State&) const = default;
  };
  const Program* program_ = nullptr;
  std::vector<State> buckets_;
  size_t next_issue_ = 0;
  size_t first_held_ = 0;  // the first collective of the order whose memory is not free again
  int in_flight_ = 0;
  int32_t unjudged_ = 0;        // buckets that hold the control collective back
  int32_t due_ = 0, late_ = 0;  // buckets that are not done: due at the end of backward, and later
  enum class Control : uint8_t { held, started, done } control_ = Control::held;
};

// The number of a bucket's leading operations that run on the thread that runs backward before anything else.
int32_t leading_device_ops(const BucketProgram& bucket);

// True if other ranks reach the end of that bucket, and of all later collectives, even if the thread that runs
// backward has left. That thread may only have to do the bucket's leading operations, when the bucket is ready, and
// operations after its last collective that nothing waits for.
bool goes_on_alone(const Program& program, int32_t bucket);

}  // namespace gradtune::exec
