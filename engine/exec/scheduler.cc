// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/scheduler.h"

#include <algorithm>

namespace gradtune::exec {

int32_t leading_device_ops(const BucketProgram& bucket) {
  int32_t count = 0;
  for (const Op& op : bucket.ops) {
    if (op.is<Collective>() || op.place != core::Place::device) break;
    ++count;
  }
  return count;
}

bool goes_on_alone(const Program& program, int32_t bucket) {
  const std::vector<Op>& ops = program.buckets[static_cast<size_t>(bucket)].ops;
  const auto is_of_thread = [](const Op& op) { return !op.is<Collective>() && op.place == core::Place::device; };
  const auto rest = ops.begin() + leading_device_ops(program.buckets[static_cast<size_t>(bucket)]);
  const auto first = std::find_if(rest, ops.end(), is_of_thread);
  if (first == ops.end()) return true;
  if (std::any_of(first, ops.end(), [](const Op& op) { return op.is<Collective>(); })) return false;
  // Collectives that are far enough behind wait for memory that is not free again.
  const auto most_held = static_cast<size_t>(core::most_held(program.strategy));
  for (size_t i = 0; i + most_held < program.order.size(); ++i) {
    const Issue& issue = program.order[i];
    if (issue.bucket == bucket && ops.begin() + issue.release >= first) return false;
  }
  return true;
}

void Scheduler::begin(const Program& program) {
  program_ = &program;
  buckets_.assign(program.buckets.size(), State{});
  next_issue_ = first_held_ = 0;
  in_flight_ = 0;
  unjudged_ = static_cast<int32_t>(program.buckets.size());
  late_ = static_cast<int32_t>(std::ranges::count(program.buckets, core::Due::forward, &BucketProgram::due));
  due_ = unjudged_ - late_;
  control_ = Control::held;
}

void Scheduler::bucket_ready(int32_t bucket, int32_t op, std::vector<Action>& actions) {
  buckets_[static_cast<size_t>(bucket)].op = op;
  judge(bucket, actions);
  advance(bucket, actions);
}

void Scheduler::op_done(int32_t bucket, int32_t op, std::vector<Action>& actions) {
  State& state = buckets_[static_cast<size_t>(bucket)];
  core::check(state.op == op, "an operation is done that was not the bucket's next one");
  if (program_->buckets[static_cast<size_t>(bucket)].ops[static_cast<size_t>(op)].is<Collective>()) {
    --in_flight_;
  }
  ++state.op;
  judge(bucket, actions);
  advance(bucket, actions);
}

void Scheduler::op_ended(int32_t bucket, int32_t op, std::vector<Action>& actions) {
  if (due_ + late_ == 0) return;  // nothing waits for memory, and the program may be gone
  buckets_[static_cast<size_t>(bucket)].ended = op;
  issue(actions);
}

// Runs before the bucket's other actions, so that ranks learn of non-finite numbers as early as they can.
void Scheduler::judge(int32_t bucket, std::vector<Action>& actions) {
  State& state = buckets_[static_cast<size_t>(bucket)];
  if (state.judged || state.op < program_->buckets[static_cast<size_t>(bucket)].judged_ops) return;
  state.judged = true;
  --unjudged_;
  start_control(actions);
}

void Scheduler::start_control(std::vector<Action>& actions) {
  if (unjudged_ > 0 || control_ != Control::held) return;
  control_ = Control::started;
  actions.push_back({Action::Kind::control});
}

void Scheduler::control_done(std::vector<Action>& actions) {
  control_ = Control::done;
  if (due_ == 0) actions.push_back({Action::Kind::backward_done});
  finish_if_done(actions);
}

void Scheduler::advance(int32_t bucket, std::vector<Action>& actions) {
  State& state = buckets_[static_cast<size_t>(bucket)];
  const std::vector<Op>& ops = program_->buckets[static_cast<size_t>(bucket)].ops;
  if (static_cast<size_t>(state.op) == ops.size()) {
    const bool is_late = program_->buckets[static_cast<size_t>(bucket)].due == core::Due::forward;
    --(is_late ? late_ : due_);
    issue(actions);
    if (is_late) actions.push_back({Action::Kind::late_done, bucket});
    if (!is_late && due_ == 0 && control_ == Control::done) actions.push_back({Action::Kind::backward_done});
    finish_if_done(actions);
    return;
  }
  const Op& op = ops[static_cast<size_t>(state.op)];
  if (op.is<Collective>()) {
    state.may_issue = true;
  } else {
    const bool device = op.place == core::Place::device;
    actions.push_back({device ? Action::Kind::run_device : Action::Kind::run_host, bucket, state.op});
  }
  issue(actions);
}

void Scheduler::issue(std::vector<Action>& actions) {
  const std::vector<Issue>& order = program_->order;
  const auto is_free = [&](const Issue& issue) {
    const State& state = buckets_[static_cast<size_t>(issue.bucket)];
    const Op& release = program_->buckets[static_cast<size_t>(issue.bucket)].ops[static_cast<size_t>(issue.release)];
    return release.frees ? state.ended >= issue.release : state.op > issue.release;
  };
  while (first_held_ < next_issue_ && is_free(order[first_held_])) ++first_held_;
  const auto most_held = static_cast<size_t>(core::most_held(program_->strategy));
  while (next_issue_ < order.size() && in_flight_ < program_->strategy.in_flight &&
         next_issue_ - first_held_ < most_held) {
    State& state = buckets_[static_cast<size_t>(order[next_issue_].bucket)];
    if (!state.may_issue) return;
    const int32_t bucket = order[next_issue_].bucket;
    state.may_issue = false;
    ++next_issue_;
    ++in_flight_;
    actions.push_back({Action::Kind::start, bucket, state.op});
  }
}

void Scheduler::finish_if_done(std::vector<Action>& actions) {
  if (due_ == 0 && late_ == 0 && control_ == Control::done) actions.push_back({Action::Kind::finished});
}

}  // namespace gradtune::exec
