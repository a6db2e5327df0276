// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/cost/timeline.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "policies/cost/cost_model.h"

namespace gradtune::policies {
namespace {

using core::Place;
using core::Step;

Server server_of(const Step& step, const OnDevice& on_device) {
  if (!core::is_collective(step.kind)) return on_device.is_by_host(step.place) ? Server::host : Server::device;
  return uses_network(step.level) ? Server::link : Server::link_intra;
}

// True if the step is a collective that delivers payloads and the next step decodes them.
bool brings_payloads(const std::vector<Step>& steps, size_t s) {
  return core::traits_of(steps[s].kind).has_output_parts && s + 1 < steps.size() &&
         steps[s + 1].kind == Step::Kind::decode;
}

}  // namespace

const char* to_string(Server server) {
  switch (server) {
    case Server::device: return "backward and device";
    case Server::host: return "host";
    case Server::messages: return "messages";
    case Server::link: return "link";
    case Server::link_intra: return "link inside the node";
    case Server::to_host: return "copies to the host";
    case Server::to_device: return "copies to the device";
  }
  return "unknown";
}

const char* to_string(Phase phase) {
  switch (phase) {
    case Phase::backward: return "backward";
    case Phase::update: return "update";
    case Phase::forward: return "forward";
  }
  return "unknown";
}

core::Result<Timeline> Timeline::make(const core::GradientTable& table, const core::Strategy& strategy,
                                      const CostTable& cost, core::TraitsTable known) {
  Timeline timeline;
  timeline.in_flight_limit_ = strategy.in_flight;
  timeline.most_held_ = static_cast<size_t>(core::most_held(strategy));
  timeline.cores_ = cost.cores;
  double before_us = 0;
  for (const double ready_us : ready_times_us(table)) {
    timeline.gaps_us_.push_back(ready_us - before_us);
    before_us = ready_us;
  }
  for (size_t b = 0; b < strategy.buckets.size(); ++b) {
    const core::Bucket& bucket = strategy.buckets[b];
    const std::vector<core::Matrix> matrices = core::matrices_of(bucket, table);
    const auto steps =
        program_op_costs(cost, bucket.option, {core::numel(bucket), matrices, core::content_of(bucket, table)}, known,
                         core::dtype_of(bucket, table));
    if (!steps) return steps.error();
    Bucket timed{.first_op = static_cast<int32_t>(timeline.ops_.size()),
                 .end_op = 0,
                 .leading = 0,
                 .last_tensor = 0,
                 .is_late = false,
                 .due_op = 0};
    const auto number = static_cast<int32_t>(b);
    const std::vector<CopyCost> copied =
        program_copy_costs(cost, bucket.option, {core::numel(bucket), matrices, core::content_of(bucket, table)}, known,
                           core::dtype_of(bucket, table));
    const bool is_cast = is_staged(bucket.option, core::dtype_of(bucket, table));
    timeline.add_operations(bucket.option, number, steps.value(), copied, pass_us(cost, core::numel(bucket)), is_cast,
                            cost.on_device);
    timed.end_op = static_cast<int32_t>(timeline.ops_.size());
    for (int32_t op = timed.first_op; op < timed.end_op; ++op) {
      if (timeline.ops_[static_cast<size_t>(op)].server != Server::device) break;
      ++timed.leading;
    }
    for (const core::Slice& slice : bucket.slices) timed.last_tensor = std::max(timed.last_tensor, slice.tensor);
    timed.is_late =
        bucket.due == core::Due::forward && std::ranges::all_of(bucket.slices, [&](const core::Slice& slice) {
          return table.tensors[static_cast<size_t>(slice.tensor)].read_us >= 0;
        });
    // For a late bucket: up to the first scale or encode, after which it is known whether its values are finite.
    timed.due_op = timed.is_late ? timed.first_op + (is_cast ? 2 : 1) : timed.end_op;
    timeline.buckets_.push_back(timed);
  }
  timeline.find_gates(table, strategy);
  timeline.order_.resize(strategy.order.size());
  timeline.set_order(strategy.order);
  timeline.by_tensor_.resize(strategy.buckets.size());
  std::iota(timeline.by_tensor_.begin(), timeline.by_tensor_.end(), 0);
  std::stable_sort(timeline.by_tensor_.begin(), timeline.by_tensor_.end(), [&](int32_t x, int32_t y) {
    return timeline.buckets_[static_cast<size_t>(x)].last_tensor <
           timeline.buckets_[static_cast<size_t>(y)].last_tensor;
  });
  for (Lane& lane : timeline.lanes_) lane.queue.resize(timeline.ops_.size());
  timeline.next_op_.resize(strategy.buckets.size());
  timeline.may_issue_.resize(strategy.buckets.size());
  timeline.waiting_.reserve(timeline.order_.size());
  timeline.spans_.resize(timeline.ops_.size());
  return timeline;
}

void Timeline::add_operations(const core::Option& option, int32_t bucket, const std::vector<OpCost>& costs,
                              const std::vector<CopyCost>& copies, double pass_us, bool is_cast,
                              const OnDevice& on_device) {
  const std::vector<Step>& steps = option.steps;
  const auto add = [&](Server server, int32_t step, double us) {
    ops_.push_back({server, false, bucket, step, 0, us, 0});
  };
  const auto add_pass = [&](Place place, int32_t step) {
    add(on_device.is_by_host(place) ? Server::host : Server::device, step, pass_us);
  };
  auto next = copies.begin();
  const auto copies_before = [&](size_t position) {
    for (; next != copies.end() && next->before == position; ++next) {
      add(next->to_host ? Server::to_host : Server::to_device, next->to_host ? kToHostStep : kToDeviceStep, next->us);
    }
  };
  const bool begins_by_encode = steps.front().kind == Step::Kind::encode;
  const Place begins_at = begins_by_encode ? steps.front().place : Place::device;
  if (on_device.is_by_host(begins_at)) copies_before(0);
  if (is_cast) add_pass(begins_at, kCastStep);
  if (!begins_by_encode) add_pass(Place::device, kScaleStep);
  int32_t collective = -1;  // the last one
  for (size_t s = 0; s < steps.size(); ++s) {
    copies_before(s);
    const auto own = static_cast<int32_t>(ops_.size());
    const bool is_collective = core::is_collective(steps[s].kind);
    ops_.push_back({server_of(steps[s], on_device), is_collective, bucket, static_cast<int32_t>(s),
                    costs[s].messages_us, costs[s].busy_us, costs[s].wait_us});
    if (s > 0 && brings_payloads(steps, s - 1)) {
      ops_[static_cast<size_t>(collective)].held = own - collective;
      ops_.back().frees = true;
    }
    if (is_collective) collective = own;
  }
  const Place ends_at = core::is_collective(steps.back().kind) ? Place::device : steps.back().place;
  const bool casts_at_host = on_device.is_by_host(ends_at);
  if (is_cast && casts_at_host) add_pass(ends_at, kCastStep);
  copies_before(steps.size());
  if (is_cast && !casts_at_host) add_pass(ends_at, kCastStep);
}

void Timeline::find_gates(const core::GradientTable& table, const core::Strategy& strategy) {
  std::vector<std::vector<int32_t>> late(table.tensors.size());  // buckets of each tensor
  for (size_t b = 0; b < buckets_.size(); ++b) {
    if (!buckets_[b].is_late) continue;
    for (const core::Slice& slice : strategy.buckets[b].slices) {
      late[static_cast<size_t>(slice.tensor)].push_back(static_cast<int32_t>(b));
    }
  }
  const auto read_us = [&](int32_t tensor) { return table.tensors[static_cast<size_t>(tensor)].read_us; };
  std::vector<int32_t> tensors;
  for (size_t t = 0; t < late.size(); ++t) {
    const double update_us = static_cast<double>(table.tensors[t].numel) * table.update_element_us;
    if (late[t].empty()) {
      updates_us_ += update_us;
    } else {
      tensors.push_back(static_cast<int32_t>(t));
    }
  }
  std::ranges::stable_sort(tensors, {}, read_us);
  double before_us = 0;
  for (const int32_t tensor : tensors) {
    const auto first = static_cast<int32_t>(gate_buckets_.size());
    const std::vector<int32_t>& buckets = late[static_cast<size_t>(tensor)];
    gate_buckets_.insert(gate_buckets_.end(), buckets.begin(), buckets.end());
    const double update_us =
        static_cast<double>(table.tensors[static_cast<size_t>(tensor)].numel) * table.update_element_us;
    gates_.push_back(
        {tensor, read_us(tensor) - before_us, update_us, first, static_cast<int32_t>(gate_buckets_.size())});
    before_us = read_us(tensor);
  }
  rest_us_ = std::max(table.forward_us - before_us, 0.0);
}

void Timeline::set_order(std::span<const core::Issue> order) {
  for (size_t i = 0; i < order_.size(); ++i) {
    int32_t op = buckets_[static_cast<size_t>(order[i].bucket)].first_op;
    while (ops_[static_cast<size_t>(op)].step != order[i].step) ++op;
    order_[i] = op;
  }
}

double Timeline::run() { return simulate<false>(nullptr); }
double Timeline::run(std::vector<Span>& spans) {
  spans.clear();
  return simulate<true>(&spans);
}

template <bool kRecords>
double Timeline::simulate(std::vector<Span>* spans) {
  for (Lane& lane : lanes_) {
    lane.is_busy = false;
    lane.first = lane.last = 0;
  }
  waiting_.clear();
  for (size_t b = 0; b < buckets_.size(); ++b) {
    next_op_[b] = buckets_[b].first_op;
    may_issue_[b] = 0;
  }
  next_ = {};
  in_flight_ = 0;
  in_hook_ = has_progressed_ = false;
  stage_ = Stage::backward;
  due_ = buckets_.size();
  double now_us = work_us_ = 0;
  next_on_device(now_us);
  for (;;) {
    // The next event: the end of a server's operation, or the arrival of a waiting collective.
    size_t done = kServers, arrived = waiting_.size();
    double least_us = std::numeric_limits<double>::infinity();
    for (size_t w = 0; w < waiting_.size(); ++w) {
      if (!(waiting_[w].end_us < least_us)) continue;
      least_us = waiting_[w].end_us;
      arrived = w;
    }
    const double speed = speed_of_work();
    for (size_t s = 0; s < kServers; ++s) {
      const Lane& lane = lanes_[s];
      if (!lane.is_busy) continue;
      const double end_us = lane.needs_cores ? now_us + (lane.end_us - work_us_) / speed : lane.end_us;
      if (!(end_us < least_us)) continue;
      least_us = end_us;
      done = s;
    }
    if (done == kServers && arrived == waiting_.size()) return now_us;
    work_us_ += (least_us - now_us) * speed;
    now_us = least_us;
    const auto ended = [&](int32_t op) {
      if constexpr (kRecords) {
        Span& span = spans_[static_cast<size_t>(op)];
        span.end_us = now_us;
        spans->push_back(span);
      }
      finish(op, now_us);
    };
    if (done == kServers) {
      const int32_t op = waiting_[arrived].op;
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(arrived));
      ended(op);
      if (std::exchange(has_progressed_, false)) go_forward(now_us);
      continue;
    }
    const auto server = static_cast<Server>(done);
    Lane& lane = lanes_[done];
    lane.is_busy = false;
    if (lane.op < 0) {
      if constexpr (kRecords) spans->push_back(span_of_thread(lane.begin_us, now_us));
      in_hook_ = stage_ == Stage::backward;  // the gradient before next_.tensor is ready
    } else {
      const Op& op = ops_[static_cast<size_t>(lane.op)];
      if constexpr (kRecords) note(server, lane, now_us);
      if (server != op.server && op.us > 0) {
        enqueue(op.server, lane.op, now_us);
      } else if (op.wait_us > 0) {
        waiting_.push_back({now_us + op.wait_us, lane.op});
      } else {
        ended(lane.op);
      }
    }
    if (server == Server::device) {
      next_on_device(now_us);
    } else if (!lane.is_busy && lane.first < lane.last) {
      start(server, lane.queue[static_cast<size_t>(lane.first++)], now_us);
    }
    if (std::exchange(has_progressed_, false)) go_forward(now_us);
  }
}

Span Timeline::span_of_thread(double begin_us, double end_us) const {
  Span span{.begin_us = begin_us, .end_us = end_us};
  if (stage_ == Stage::backward) {
    span.step = static_cast<int32_t>(next_.tensor) - 1;
    return span;
  }
  span.phase = stage_ == Stage::forward ? Phase::forward : Phase::update;
  if (stage_ != Stage::updating && next_.gate < gates_.size()) span.step = gates_[next_.gate].tensor;
  return span;
}

// Records the part of an operation that a server did.
void Timeline::note(Server server, const Lane& lane, double now_us) {
  const Op& op = ops_[static_cast<size_t>(lane.op)];
  Span& span = spans_[static_cast<size_t>(lane.op)];
  if (server == Server::messages) {
    span = {op.server, op.bucket, op.step, lane.begin_us, 0, op.wait_us, now_us, now_us};
  } else if (op.messages_us > 0) {
    span.carried_us = lane.begin_us;
  } else {
    span = {op.server, op.bucket, op.step, lane.begin_us, 0, op.wait_us};
  }
}

void Timeline::finish(int32_t op, double now_us) {
  const bool is_collective = ops_[static_cast<size_t>(op)].is_collective;
  const int32_t number = ops_[static_cast<size_t>(op)].bucket;
  const auto b = static_cast<size_t>(number);
  ++next_op_[b];
  if (is_collective) --in_flight_;
  // The device runs the leading operations of a bucket without a break; other work follows.
  const Bucket& bucket = buckets_[b];
  if (next_op_[b] == bucket.due_op) --due_;
  has_progressed_ = has_progressed_ || bucket.is_late || next_op_[b] == bucket.end_op;
  if (next_op_[b] >= bucket.first_op + bucket.leading) {
    if (next_op_[b] == bucket.first_op + bucket.leading && bucket.leading > 0) in_hook_ = false;
    go_on(number, now_us);
  }
  if (is_collective || ops_[static_cast<size_t>(op)].frees) issue(now_us);
}

void Timeline::start(Server server, int32_t op, double now_us) {
  const Op& of = ops_[static_cast<size_t>(op)];
  start(lanes_[static_cast<size_t>(server)], op, now_us, server == Server::messages ? of.messages_us : of.us,
        needs_cores(server));
}

void Timeline::start(Lane& lane, int32_t op, double now_us, double us, bool needs_cores) {
  lane.is_busy = true;
  lane.needs_cores = needs_cores;
  lane.op = op;
  lane.begin_us = now_us;
  lane.end_us = (needs_cores ? work_us_ : now_us) + us;
}

bool Timeline::needs_cores(Server server) const {
  if (!(cores_.of_rank > 0)) return false;
  switch (server) {
    case Server::device: return cores_.computing > 0;
    case Server::host:
    case Server::messages:
    case Server::link_intra: return true;
    case Server::link:
    case Server::to_host:
    case Server::to_device: return false;
  }
  return false;
}

double Timeline::speed_of_work() const {
  if (!(cores_.of_rank > 0)) return 1;
  const auto busy = [&](Server server) { return lanes_[static_cast<size_t>(server)].is_busy; };
  const bool is_backward = lanes_[static_cast<size_t>(Server::device)].op < 0;
  return speed(cores_, {busy(Server::device) && is_backward, busy(Server::device) && !is_backward, busy(Server::host),
                        busy(Server::messages), busy(Server::link_intra), busy(Server::link)});
}

void Timeline::enqueue(int32_t op, double now_us) {
  const Op& of = ops_[static_cast<size_t>(op)];
  enqueue(of.messages_us > 0 ? Server::messages : of.server, op, now_us);
}

void Timeline::enqueue(Server server, int32_t op, double now_us) {
  Lane& lane = lanes_[static_cast<size_t>(server)];
  // The device takes up waiting work at its next free moment; it is idle only after backward.
  const bool idle = !lane.is_busy && lane.first == lane.last &&
                    (server != Server::device || (next_.tensor == gaps_us_.size() && !in_hook_));
  if (idle) {
    start(server, op, now_us);
  } else {
    lane.queue[static_cast<size_t>(lane.last++)] = op;
  }
}

// Starts the bucket's next operation, if it has one.
void Timeline::go_on(int32_t bucket, double now_us) {
  const auto b = static_cast<size_t>(bucket);
  if (next_op_[b] == buckets_[b].end_op) return;
  if (!ops_[static_cast<size_t>(next_op_[b])].is_collective) return enqueue(next_op_[b], now_us);
  may_issue_[b] = 1;
  issue(now_us);
}

void Timeline::issue(double now_us) {
  const auto is_free = [&](int32_t op) {
    const Op& of = ops_[static_cast<size_t>(op)];
    return next_op_[static_cast<size_t>(of.bucket)] > op + of.held;
  };
  while (next_.issue < order_.size() && in_flight_ < in_flight_limit_) {
    const int32_t op = order_[next_.issue];
    const auto b = static_cast<size_t>(ops_[static_cast<size_t>(op)].bucket);
    if (may_issue_[b] == 0) return;
    if (next_.issue - next_.held >= most_held_) {
      while (next_.held < next_.issue && is_free(order_[next_.held])) ++next_.held;
      if (next_.issue - next_.held >= most_held_) return;
    }
    may_issue_[b] = 0;
    ++next_.issue;
    ++in_flight_;
    enqueue(op, now_us);
  }
}

// The next work of the thread that runs backward: buckets that are ready, then work that waits for it, then
// backward.
void Timeline::next_on_device(double now_us) {
  Lane& device = lanes_[static_cast<size_t>(Server::device)];
  if (device.is_busy) return;
  const auto tensor = static_cast<int32_t>(next_.tensor) - 1;
  while (next_.bucket < by_tensor_.size()) {
    const int32_t b = by_tensor_[next_.bucket];
    const Bucket& bucket = buckets_[static_cast<size_t>(b)];
    if (bucket.last_tensor > tensor) break;
    const int32_t next = next_op_[static_cast<size_t>(b)];
    if (next < bucket.first_op + bucket.leading) {
      in_hook_ = true;
      return start(Server::device, next, now_us);
    }
    ++next_.bucket;
    if (bucket.leading == 0) go_on(b, now_us);
  }
  in_hook_ = false;
  if (device.is_busy) return;
  const bool is_waiting = stage_ == Stage::backward || stage_ == Stage::returning || stage_ == Stage::at_gate;
  if (is_waiting && device.first < device.last) {  // a round of waiting work, once begun, is finished
    return start(Server::device, device.queue[static_cast<size_t>(device.first++)], now_us);
  }
  if (is_over()) return go_forward(now_us);
  start(device, -1, now_us, gaps_us_[next_.tensor++], needs_cores(Server::device));
}

// The user's thread after backward, if it has nothing else to do: it goes on to the next work that takes time or
// that it has to wait for. While it waits, it does the work that waits for it.
void Timeline::go_forward(double now_us) {
  Lane& device = lanes_[static_cast<size_t>(Server::device)];
  if (device.is_busy || in_hook_ || !is_over() || next_.bucket < by_tensor_.size()) return;
  const auto work_meanwhile = [&] {
    if (device.first < device.last) start(Server::device, device.queue[static_cast<size_t>(device.first++)], now_us);
  };
  for (;;) {
    double us = 0;
    switch (stage_) {
      case Stage::backward: stage_ = Stage::returning; continue;
      case Stage::returning:
        if (due_ > 0) return work_meanwhile();
        stage_ = Stage::updating;
        us = updates_us_;
        break;
      case Stage::late_update: ++next_.gate; [[fallthrough]];
      case Stage::updating:
        stage_ = Stage::forward;
        us = next_.gate < gates_.size() ? gates_[next_.gate].gap_us : rest_us_;
        break;
      case Stage::forward: stage_ = next_.gate < gates_.size() ? Stage::at_gate : Stage::over; continue;
      case Stage::at_gate:
        if (is_open(gates_[next_.gate])) return work_meanwhile();
        stage_ = Stage::late_update;
        us = gates_[next_.gate].update_us;
        break;
      case Stage::over: return;
    }
    if (us > 0) return start(device, -1, now_us, us, needs_cores(Server::device));
  }
}

// True if a bucket of the gate's tensor is still in flight.
bool Timeline::is_open(const Gate& gate) const {
  return std::any_of(gate_buckets_.begin() + gate.first, gate_buckets_.begin() + gate.end, [&](int32_t bucket) {
    return next_op_[static_cast<size_t>(bucket)] < buckets_[static_cast<size_t>(bucket)].end_op;
  });
}

}  // namespace gradtune::policies
