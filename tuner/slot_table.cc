// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/slot_table.h"

#include <algorithm>
#include <utility>

namespace gradtune::tuner {
namespace {

// Reports after which a strategy that is still not prepared is given up. Usually two are enough.
constexpr int kPatience = 5;

}  // namespace

void SlotTable::add_ready(int32_t slot, const policies::Candidate& candidate, bool is_permanent) {
  entries_[slot] = {.candidate = std::make_shared<policies::Candidate>(candidate),
                    .hash = core::hash(candidate.strategy),
                    .fidelity = core::needed_fidelity(candidate.strategy, traits_),
                    .is_ready = true,
                    .is_permanent = is_permanent,
                    .step_ms = {}};
  next_slot_ = std::max(next_slot_, slot + 1);
}

int32_t SlotTable::slot_of(const policies::Candidate& candidate) {
  const uint64_t hash = core::hash(candidate.strategy);
  for (const auto& [slot, entry] : entries_) {
    if (entry.hash == hash) return slot;
  }
  const int32_t slot = next_slot_;
  add_ready(slot, candidate, /*is_permanent=*/false);
  entries_[slot].is_ready = false;
  return slot;
}

void SlotTable::prepare(int32_t slot, int64_t earliest_step) {
  const bool is_queued = std::ranges::any_of(queue_, [&](const auto& queued) { return queued.second == slot; });
  if (!at(slot).is_ready && preparing_ != slot && !is_queued) queue_.emplace(earliest_step, slot);
}

void SlotTable::release(int32_t slot) {
  if (at(slot).is_permanent) return;
  if (at(slot).is_ready || preparing_ == slot) drops_.push_back(slot);
  if (preparing_ == slot) preparing_.reset();
  std::erase_if(queue_, [&](const auto& queued) { return queued.second == slot; });
  entries_.erase(slot);
}

void SlotTable::release_all_but(const std::vector<int32_t>& slots) {
  std::vector<int32_t> others;
  for (const auto& [slot, entry] : entries_) {
    if (std::find(slots.begin(), slots.end(), slot) == slots.end()) others.push_back(slot);
  }
  for (int32_t slot : others) release(slot);
}

void SlotTable::release_slowest_beyond(size_t most) {
  std::vector<std::pair<double, int32_t>> measured;
  for (const auto& [slot, entry] : entries_) {
    if (entry.step_ms && !entry.is_permanent) measured.emplace_back(*entry.step_ms, slot);
  }
  std::sort(measured.begin(), measured.end());
  for (size_t i = most; i < measured.size(); ++i) release(measured[i].second);
}

void SlotTable::measured(int32_t slot, double step_ms) {
  if (contains(slot)) entries_[slot].step_ms = step_ms;
}

void SlotTable::forget_times() {
  for (auto& [slot, entry] : entries_) entry.step_ms.reset();
}

std::optional<int32_t> SlotTable::fastest() const {
  std::optional<int32_t> fastest;
  for (const auto& [slot, entry] : entries_) {
    if (entry.step_ms && (!fastest || *entry.step_ms < *at(*fastest).step_ms)) fastest = slot;
  }
  return fastest;
}

std::optional<int32_t> SlotTable::next_to_prepare() const {
  if (queue_.empty()) return {};
  return queue_.begin()->second;
}

std::optional<SlotTable::Prepared> SlotTable::follow(const core::StepReport& report) {
  if (!preparing_) return {};
  if (!report.prepared && !report.failed && ++waited_ < kPatience) return {};
  Entry& entry = entries_.at(*preparing_);
  entry.is_ready = report.prepared;
  Prepared prepared{*preparing_, entry};
  if (!entry.is_ready) release(*preparing_);
  preparing_.reset();
  return prepared;
}

Command SlotTable::start_preparing() {
  preparing_ = queue_.begin()->second;
  queue_.erase(queue_.begin());
  waited_ = 0;
  return {.kind = Command::Kind::prepare, .slot = *preparing_, .bytes = 0};
}

std::optional<Command> SlotTable::next_drop(int32_t in_force) {
  const auto slot = std::find_if(drops_.begin(), drops_.end(), [&](int32_t drop) { return drop != in_force; });
  if (slot == drops_.end()) return {};
  const Command command{.kind = Command::Kind::drop, .slot = *slot, .bytes = 0};
  drops_.erase(slot);
  return command;
}

}  // namespace gradtune::tuner
