// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/schedule.h"

#include <algorithm>
#include <utility>

#include "engine/core/median.h"

namespace gradtune::tuner {
namespace {

bool is_usable(const core::StepReport& report, int32_t slot) {
  return report.slot == slot && report.finite && !report.excluded && report.step_ms > 0;
}

}  // namespace

Schedule::Schedule(int lead, int32_t slot) : lead_(lead), slot_(slot), slot_before_(slot), rest_(slot) {}

void Schedule::add(const Block& block) { waiting_.push_back(block); }

bool Schedule::take_back(int32_t slot) {
  if (!waiting_.empty()) {
    if (waiting_.back().slot == slot) waiting_.pop_back();
    return false;
  }
  if (running_.empty() || running_.back().block.slot != slot || running_.back().begin <= step_) return false;
  running_.pop_back();
  slot_ = slot_before_;
  return true;
}

void Schedule::give_up(int32_t slot) {
  std::erase_if(waiting_, [&](const Block& block) { return block.slot == slot; });
  if (running_.empty() || running_.back().block.slot != slot) return;
  Running& last = running_.back();
  last.length = std::min(last.length, static_cast<int>(std::max<int64_t>(0, step_ + lead_ - last.begin)));
}

void Schedule::stop(int32_t slot) {
  waiting_.clear();
  running_.clear();
  scores_.clear();
  slot_ = rest_ = slot;
}

void Schedule::record(const core::StepReport& report) {
  step_ = report.step;
  while (!running_.empty() && running_.front().end <= step_) finish_front();
  if (running_.empty() || running_.front().begin > step_) return;
  Running& front = running_.front();
  observe(front, report);
  const bool has_all = static_cast<int>(front.step_ms.size()) >= front.block.scored;
  if (has_all || front.seen >= front.length || front.end == step_ + 1) finish_front();
}

void Schedule::observe(Running& running, const core::StepReport& report) const {
  const Block& block = running.block;
  ++running.seen;
  const bool usable = is_usable(report, block.slot);
  if (usable && report.step_ms > block.limit_ms) running.slow += report.step_ms > 2 * block.limit_ms ? 2 : 1;
  if (running.slow >= 2) running.length = std::min(running.length, running.seen + lead_ - 1);
  if (running.seen <= block.dropped) return;
  if (usable) {
    running.step_ms.push_back(report.step_ms);
  } else if (running.extended < block.patience) {
    ++running.extended;
    ++running.length;
  }
}

void Schedule::finish_front() {
  Running& front = running_.front();
  Score score{.slot = front.block.slot,
              .step_ms = {},
              .steps = static_cast<int>(front.step_ms.size()),
              .begin = front.begin,
              .end = front.begin + front.seen};
  if (2 * score.steps >= front.block.scored && score.steps > 0) score.step_ms = core::median(std::move(front.step_ms));
  scores_.push_back(score);
  running_.pop_front();
}

std::optional<int32_t> Schedule::next_slot() {
  const int64_t step = step_ + lead_;
  if (!running_.empty()) {
    Running& last = running_.back();
    if (last.end > step && step < last.begin + last.length) return {};
    if (waiting_.empty() && rest_ == slot_)
      return {};  // it continues to run, and so may make up for steps that were
                  // not scored
    last.end = std::min(last.end, step);
  }
  int32_t next = rest_;
  if (!waiting_.empty()) {
    next = waiting_.front().slot;
    const int length = waiting_.front().dropped + waiting_.front().scored;
    running_.push_back({.block = waiting_.front(), .begin = step, .length = length, .step_ms = {}});
    waiting_.pop_front();
  }
  if (next == slot_) return {};
  slot_before_ = std::exchange(slot_, next);
  return next;
}

std::vector<Score> Schedule::take_scores() { return std::exchange(scores_, {}); }

}  // namespace gradtune::tuner
