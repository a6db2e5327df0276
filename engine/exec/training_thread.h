// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The part of the thread that runs backward in a step: it brings gradients to their places, does the operations with
// placement `device`, and waits. Events of the scheduler are left to the communication thread until the host has all
// gradients; then this thread handles them while it has nothing else to do. A hand-over to a sleeping thread takes
// several microseconds.
//
// In steady state this thread allocates nothing and no lock is contended on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/exec/event_handler.h"

namespace gradtune::exec {

// The time that the thread that runs backward spent on gradtune's behalf in this step.
struct StepTimes {
  double encode_ms = 0;  // copy, scale, load, encode on the device
  double decode_ms = 0;  // decode, store on the device
  double wait_ms = 0;    // waiting for a collective or the host with nothing else to do: exposed communication
  double comm_ms = 0;    // the total of all collectives, whoever waited for them
  int64_t bytes = 0;     // carried by all collectives, in one direction of the busiest link

  double work_ms() const { return encode_ms + decode_ms; }
  double exchange_ms() const { return work_ms() + wait_ms; }

  StepTimes operator+(const StepTimes& other) const {
    return {encode_ms + other.encode_ms, decode_ms + other.decode_ms, wait_ms + other.wait_ms, comm_ms + other.comm_ms,
            bytes + other.bytes};
  }
  StepTimes operator-(const StepTimes& other) const {
    return {encode_ms - other.encode_ms, decode_ms - other.decode_ms, wait_ms - other.wait_ms, comm_ms - other.comm_ms,
            bytes - other.bytes};
  }
};

class TrainingThread {
 public:
  TrainingThread(Shared& shared, EventHandler& handler);

  // Called when a program was put in force.
  void begin_program(const Program& program);
  void begin_step();

  // As Executor::tensor_ready.
  bool tensor_ready(int32_t tensor, const Arrived& arrived);

  // Does the operations that others left to this thread. Returns false if there were none.
  bool do_operations();

  // Waits until `holds` is true. Returns false if the executor has failed.
  template <typename Condition>
  bool wait_until(const Condition& holds) {
    Patience patience = begin_wait();
    while (!holds() && !shared_.failure.has_happened()) {
      if (!do_operations()) wait_a_while(patience);
    }
    end_wait();
    return !shared_.failure.has_happened();
  }

  // Takes the times of buckets with that due time, which are done.
  void read_times(core::Due due);
  const StepTimes& times() const { return times_; }

  compress::HostQueue& queue() { return *queue_; }

 private:
  // The part of a wait in which nothing happened.
  struct Patience {
    int64_t events = 0;  // handled before
    int64_t idle_ms = 0;
  };

  bool handles_events() const;
  void post(const Event& event);
  bool bring(int32_t tensor, const Piece& piece, const Arrived& arrived);
  bool begin_bucket(int32_t bucket);
  bool run(int32_t bucket, int32_t op);
  Patience begin_wait();
  void wait_a_while(Patience& patience);
  void end_wait();

  Shared& shared_;
  EventHandler& handler_;
  const std::unique_ptr<compress::HostQueue> queue_ = compress::make_serial_queue();
  StepTimes times_;
  size_t missing_buckets_ = 0;       // buckets whose gradients have not all arrived
  std::vector<int64_t> arrived_ns_;  // per bucket: the time spent on scaling the pieces that arrived so far
};

}  // namespace gradtune::exec
