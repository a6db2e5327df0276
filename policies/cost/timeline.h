// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// One training step of one rank, predicted: when every operation of every bucket begins and ends, by the executor's own
// rules (engine/exec/scheduler.h):
//   - The thread that runs backward works on a bucket as soon as its last gradient is ready, and in its next hook on
//     what else waits for it.
//   - The host does one operation after the other.
//   - Where gradients are on a device, copies of each direction between it and the host are done one after the other,
//     beside all else. Kernels of compressors and of backward share the device, so that encoding there delays backward
//     as it does on the host.
//   - Collectives are issued in the strategy's order, at most `in_flight` at once. Their messages are handled one after
//     the other, then a link carries their bytes, one collective after the other, and then they only wait for the last
//     ones to arrive.
//   - Backward returns when all buckets are there that are due then, and it is known of the others whether they are
//     finite. The optimizer updates the parameters that are there, and forward begins. It stops at the first read of
//     each tensor with a part in a bucket that is due then, works on what waits for its thread until all of these
//     buckets are there, and updates the tensor. A tensor without a reader that is known makes its bucket due when
//     backward returns.
// What needs cores is slow while others need them too (core_sharing.h). Where a rate comes from is the cost table's
// business; ranks are alike.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/core/result.h"
#include "engine/core/strategy.h"
#include "policies/cost/cost_table.h"
#include "policies/cost/program_cost.h"

namespace gradtune::policies {

// Who does an operation: one after the other, in the order in which they come. `messages` are the threads that handle
// those of collectives, `link` is the network, `link_intra` what ranks of a node have between them.
enum class Server : uint8_t { device, host, messages, link, link_intra, to_host, to_device };
constexpr size_t kServers = 7;
const char* to_string(Server server);

// What the user's thread does beside the operations of buckets.
enum class Phase : uint8_t { backward, update, forward };
const char* to_string(Phase phase);

// Something that took time. `step` is that of the bucket's program, or what compiling inserted (inserted_steps.h). What
// the user's thread does has the bucket -1, and as its step the position of the tensor that it ends with (backward: its
// gradient is ready; update, forward: it is late), or -1.
struct Span {
  Server server = Server::device;
  int32_t bucket = -1;
  int32_t step = -1;
  double begin_us = 0, end_us = 0;
  double wait_us = 0;  // at the end of it, while its server was free for others
  // Of a collective that has messages to handle: until when that took, and when its link began with it.
  double handled_us = 0, carried_us = 0;
  Phase phase = Phase::backward;  // of the bucket -1

  bool operator==(const Span&) const = default;
};

class Timeline {
 public:
  // An error names the step for which the table has no rate. The strategy must pass core::validate for the table.
  static core::Result<Timeline> make(const core::GradientTable& table, const core::Strategy& strategy,
                                     const CostTable& cost, core::TraitsTable known);

  // Another order of the same collectives, each after those before it in its program; its size does not change.
  void set_order(std::span<const core::Issue> order);

  // From the first ready gradient to the end of the next forward pass, us; its length, and that of updates, is the
  // gradient table's. Where these are not measured: to the end of the last operation and of backward. Allocates
  // nothing.
  double run();
  // The same, with what happened, in the order of ends.
  double run(std::vector<Span>& spans);

  size_t operations() const { return ops_.size(); }

 private:
  struct Op {
    Server server;
    bool is_collective;
    int32_t bucket, step;
    double messages_us;  // of a collective, before its server is busy with it
    double us;           // that its server is busy
    double wait_us;      // that it takes longer
    int32_t held = 0;    // of a collective: so many operations after it need what it brought, which has to be decoded
    bool frees = false;  // the last of these
  };
  struct Bucket {
    int32_t first_op, end_op;
    int32_t leading;      // operations from the first that the thread of backward does at once
    int32_t last_tensor;  // that it waits for
    bool is_late;         // due at the next forward pass
    int32_t due_op;       // backward returns when operations before it are done
  };

  // Where forward stops: at the first read of a tensor.
  struct Gate {
    int32_t tensor;
    double gap_us;       // of forward, before it
    double update_us;    // of the tensor
    int32_t first, end;  // the late buckets that it is in, of gate_buckets_
  };

  // What a server does and what waits for it. Places in the queue are used once in a step.
  struct Lane {
    double begin_us = 0;
    double end_us = 0;  // by the clock of work where it needs cores
    int32_t op = -1;    // of ops_; -1: nothing, or what the user's thread does
    bool is_busy = false;
    bool needs_cores = false;
    int32_t first = 0, last = 0;  // of `queue`
    std::vector<int32_t> queue;
  };

  // A collective that has left its server.
  struct Waiting {
    double end_us;
    int32_t op;
  };

  Timeline() = default;
  void add_operations(const core::Option& option, int32_t bucket, const std::vector<OpCost>& costs,
                      const std::vector<CopyCost>& copies, double pass_us, bool is_cast, const OnDevice& on_device);
  template <bool kRecords>
  double simulate(std::vector<Span>* spans);
  void start(Server server, int32_t op, double now_us);
  void start(Lane& lane, int32_t op, double now_us, double us, bool needs_cores);
  bool needs_cores(Server server) const;
  double speed_of_work() const;
  void note(Server server, const Lane& lane, double now_us);
  void finish(int32_t op, double now_us);
  void enqueue(int32_t op, double now_us);
  void enqueue(Server server, int32_t op, double now_us);
  void go_on(int32_t bucket, double now_us);
  void issue(double now_us);
  void next_on_device(double now_us);
  void go_forward(double now_us);
  bool is_open(const Gate& gate) const;
  Span span_of_thread(double begin_us, double end_us) const;
  void find_gates(const core::GradientTable& table, const core::Strategy& strategy);
  bool is_over() const { return next_tensor_ == gaps_us_.size(); }  // backward

  std::vector<Op> ops_;
  std::vector<Bucket> buckets_;
  std::vector<int32_t> by_tensor_;  // buckets in the order of their last tensors
  std::vector<double> gaps_us_;     // of backward, before each tensor
  std::vector<Gate> gates_;         // in the order in which forward comes to them
  std::vector<int32_t> gate_buckets_;
  double updates_us_ = 0;       // of all tensors that are not late
  double rest_us_ = 0;          // of forward, after the last gate
  std::vector<int32_t> order_;  // collectives
  int in_flight_limit_ = 1;
  size_t most_held_ = 1;
  Cores cores_;

  // Of a step.
  std::array<Lane, kServers> lanes_;
  double work_us_ = 0;              // what somebody who needed cores all the time would have done by now
  std::vector<Span> spans_;         // of each operation, as far as it got
  std::vector<Waiting> waiting_;    // no more than are in flight
  std::vector<int32_t> next_op_;    // of each bucket
  std::vector<uint8_t> may_issue_;  // of each bucket, 1: its next operation is a collective that waits for its turn
  size_t first_held_ = 0, next_issue_ = 0, next_tensor_ = 0, next_bucket_ = 0;
  int in_flight_ = 0;
  bool in_hook_ = false;  // a bucket's leading operations are not done
  // What the user's thread does, or did last.
  enum class Stage : uint8_t { backward, returning, updating, forward, at_gate, late_update, over };
  Stage stage_ = Stage::backward;
  // Buckets that are waited for before backward returns: to be done or, those that are late, to have been judged.
  size_t due_ = 0;
  size_t next_gate_ = 0;
  bool has_progressed_ = false;  // a bucket that somebody may wait for, in this event
};

}  // namespace gradtune::policies
