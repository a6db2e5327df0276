// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Predicts one training step of one rank: the begin and end of every operation of every bucket, by the executor's
// own rules (engine/exec/scheduler.h):
// - The thread that runs backward works on a bucket as soon as its last gradient is ready, and does other waiting
//   work in its next hook.
// - The host does one operation at a time.
// - If gradients are on a device, the copies of each direction between it and the host are done one after another,
//   in parallel with all else. Kernels of compressors and of backward share the device, so encoding on the device
//   delays backward as it does on the host.
// - Collectives are issued in the strategy's order, at most `in_flight` at once. Their messages are handled one
//   after another, then a link carries their bytes, one collective after another, and then they only wait for the
//   last ones to arrive.
// - Backward returns when all buckets that are due then have arrived, and when it is known whether the others are
//   finite. The optimizer updates the parameters whose averages have arrived, and forward begins. Forward stops at
//   the first read of each tensor with a part in a bucket that is due then. It does the work that waits for its
//   thread until all of these buckets have arrived, and updates the tensor. A tensor without a known reader makes
//   its bucket due when backward returns.
//
// Work that needs cores is slow while other work needs them too (core_sharing.h). Rates come from the cost table,
// and all ranks behave alike.
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

// The servers of operations; each does one at a time, in the order of arrival. `messages` are the threads that
// handle the messages of collectives, `link` is the network, and `link_intra` is the link between ranks of a node.
enum class Server : uint8_t { device, host, messages, link, link_intra, to_host, to_device };
constexpr size_t kServers = 7;
const char* to_string(Server server);

// The phases of the user's thread apart from the operations of buckets.
enum class Phase : uint8_t { backward, update, forward };
const char* to_string(Phase phase);

// A period of work. `step` is a step of the bucket's program, or one that compiling inserted (inserted_steps.h). The
// user's thread has bucket -1. Its `step` is then the position of the tensor at the end of the period (backward: its
// gradient is ready; update, forward: it is late), or -1.
struct Span {
  Server server = Server::device;
  int32_t bucket = -1;
  int32_t step = -1;
  double begin_us = 0, end_us = 0;
  double wait_us = 0;  // at the end, while the server is free for others
  // For a collective with messages: the end of their handling, and the time at which its link began.
  double handled_us = 0, carried_us = 0;
  Phase phase = Phase::backward;  // for bucket -1

  bool operator==(const Span&) const = default;
};

class Timeline {
 public:
  // An error names the step for which the table has no rate. The strategy must pass core::validate for the table.
  static core::Result<Timeline> make(const core::GradientTable& table, const core::Strategy& strategy,
                                     const CostTable& cost, core::TraitsTable known);

  // Sets another order of the same collectives, each after those before it in its program; the number of collectives
  // does not change.
  void set_order(std::span<const core::Issue> order);

  // Time in us from the first ready gradient to the end of the next forward pass; the gradient table gives the
  // length of forward and of updates. If these are not measured, to the end of the last operation and of backward.
  // Allocates nothing.
  double run();
  // The same, and records the periods in the order of their ends.
  double run(std::vector<Span>& spans);

  size_t operations() const { return ops_.size(); }

 private:
  struct Op {
    Server server;
    bool is_collective;
    int32_t bucket, step;
    double messages_us;  // of a collective, before its server is busy with it
    double us;           // time for which its server is busy
    double wait_us;      // additional waiting time
    // For a collective: the number of later operations that need its payloads, which have to be decoded.
    int32_t held = 0;
    bool frees = false;  // the last of these operations
  };
  struct Bucket {
    int32_t first_op, end_op;
    int32_t leading;      // number of leading operations that the thread of backward does without a break
    int32_t last_tensor;  // the last tensor that it waits for
    bool is_late;         // due at the next forward pass
    int32_t due_op;       // backward returns when the operations before it are done
  };

  // A stop of forward: the first read of a tensor.
  struct Gate {
    int32_t tensor;
    double gap_us;       // forward time before it
    double update_us;    // of the tensor
    int32_t first, end;  // the late buckets that contain it, as a range of gate_buckets_
  };

  // The current work of a server and its queue. Entries of the queue are used once in a step.
  struct Lane {
    double begin_us = 0;
    double end_us = 0;  // by the work clock if it needs cores
    int32_t op = -1;    // index into ops_; -1: none, or work of the user's thread
    bool is_busy = false;
    bool needs_cores = false;
    int32_t first = 0, last = 0;  // range in `queue`
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
  bool is_over() const { return next_.tensor == gaps_us_.size(); }  // backward

  std::vector<Op> ops_;
  std::vector<Bucket> buckets_;
  std::vector<int32_t> by_tensor_;  // buckets in the order of their last tensors
  std::vector<double> gaps_us_;     // of backward, before each tensor
  std::vector<Gate> gates_;         // in the order in which forward reaches them
  std::vector<int32_t> gate_buckets_;
  double updates_us_ = 0;       // of all tensors that are not late
  double rest_us_ = 0;          // forward time after the last gate
  std::vector<int32_t> order_;  // of collectives
  int in_flight_limit_ = 1;
  size_t most_held_ = 1;
  Cores cores_;

  // The state of one step.
  std::array<Lane, kServers> lanes_;
  double work_us_ = 0;              // work done so far by a kind that needs cores all the time
  std::vector<Span> spans_;         // of each operation, as far as it has come
  std::vector<Waiting> waiting_;    // at most as many as are in flight
  std::vector<int32_t> next_op_;    // of each bucket
  std::vector<uint8_t> may_issue_;  // for each bucket, 1: its next operation is a collective that waits for its turn
  struct Next {
    size_t tensor = 0, bucket = 0, gate = 0, issue = 0;
    size_t held = 0;  // the first collective whose payloads may not be decoded yet
  };
  Next next_;  // indices
  int in_flight_ = 0;
  bool in_hook_ = false;  // a bucket's leading operations are not done
  // The current stage of the user's thread, or the last one.
  enum class Stage : uint8_t { backward, returning, updating, forward, at_gate, late_update, over };
  Stage stage_ = Stage::backward;
  // Buckets to wait for before backward returns: they must be done or, if they are late, be known to be finite.
  size_t due_ = 0;
  bool has_progressed_ = false;  // in this event a bucket made progress that other work may wait for
};

}  // namespace gradtune::policies
