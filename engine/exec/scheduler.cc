// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/scheduler.h"

namespace gradtune::exec {

int32_t leading_device_ops(const BucketProgram& bucket) {
  int32_t count = 0;
  for (const Op& op : bucket.ops) {
    if (op.kind == Op::Kind::collective || op.place != core::Place::device) break;
    ++count;
  }
  return count;
}

void Scheduler::begin(const Program& program) {
  program_ = &program;
  buckets_.assign(program.buckets.size(), State{});
  next_issue_ = 0;
  in_flight_ = 0;
  open_buckets_ = static_cast<int32_t>(program.buckets.size());
  control_started_ = control_done_ = false;
}

void Scheduler::bucket_ready(int32_t bucket, int32_t op, std::vector<Action>& actions) {
  buckets_[static_cast<size_t>(bucket)].op = op;
  advance(bucket, actions);
}

void Scheduler::op_done(int32_t bucket, int32_t op, std::vector<Action>& actions) {
  State& state = buckets_[static_cast<size_t>(bucket)];
  core::check(state.op == op, "an operation is done that was not the bucket's next one");
  if (program_->buckets[static_cast<size_t>(bucket)].ops[static_cast<size_t>(op)].kind == Op::Kind::collective) {
    --in_flight_;
  }
  ++state.op;
  advance(bucket, actions);
}

void Scheduler::control_done(std::vector<Action>& actions) {
  control_done_ = true;
  finish_if_done(actions);
}

void Scheduler::advance(int32_t bucket, std::vector<Action>& actions) {
  State& state = buckets_[static_cast<size_t>(bucket)];
  const std::vector<Op>& ops = program_->buckets[static_cast<size_t>(bucket)].ops;
  if (static_cast<size_t>(state.op) == ops.size()) {
    --open_buckets_;
    issue(actions);
    finish_if_done(actions);
    return;
  }
  const Op& op = ops[static_cast<size_t>(state.op)];
  if (op.kind == Op::Kind::collective) {
    state.may_issue = true;
  } else {
    const bool device = op.place == core::Place::device;
    actions.push_back({device ? Action::Kind::run_device : Action::Kind::run_host, bucket, state.op});
  }
  issue(actions);
}

void Scheduler::issue(std::vector<Action>& actions) {
  const std::vector<Issue>& order = program_->order;
  while (next_issue_ < order.size() && in_flight_ < program_->strategy.in_flight) {
    State& state = buckets_[static_cast<size_t>(order[next_issue_].bucket)];
    if (!state.may_issue) return;
    const int32_t bucket = order[next_issue_].bucket;
    state.may_issue = false;
    ++next_issue_;
    ++in_flight_;
    actions.push_back({Action::Kind::start, bucket, state.op});
  }
  if (next_issue_ == order.size() && !control_started_) {
    control_started_ = true;
    actions.push_back({Action::Kind::control});
  }
}

void Scheduler::finish_if_done(std::vector<Action>& actions) {
  if (open_buckets_ == 0 && control_done_) actions.push_back({Action::Kind::finished});
}

}  // namespace gradtune::exec
