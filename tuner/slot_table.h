// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The strategies that the tuner works with, each in a slot: the ones that are ready on all ranks, those that wait to
// be prepared (one at a time), and those to be dropped. Slot numbers are never used twice, so a late report cannot
// be taken for that of another strategy. It leaves open which strategies deserve a slot.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/core/measurement.h"
#include "policies/policy.h"
#include "tuner/agreement.h"

namespace gradtune::tuner {

struct Entry {
  std::shared_ptr<const policies::Candidate> candidate;
  uint64_t hash = 0;
  core::Fidelity fidelity = core::Fidelity::exact;
  bool is_ready = false;
  bool is_permanent = false;      // never released: a baseline, or the committed strategy
  std::optional<double> step_ms;  // of its last block
};

class SlotTable {
 public:
  explicit SlotTable(core::TraitsTable traits) : traits_(traits) {}

  // Adds a strategy that is prepared on all ranks already.
  void add_ready(int32_t slot, const policies::Candidate& candidate, bool is_permanent);

  // The slot of that strategy, a new one if it has none. A new slot is not prepared until prepare() is called, which
  // does nothing for a slot that is ready or queued. A strategy that may run in an earlier step goes first.
  int32_t slot_of(const policies::Candidate& candidate);
  void prepare(int32_t slot, int64_t earliest_step = 0);

  // Removes strategies that are not permanent. Slots that ranks hold are queued to be dropped.
  void release(int32_t slot);
  void release_all_but(const std::vector<int32_t>& slots);
  void release_slowest_beyond(size_t most);  // keeps the fastest `most` of the measured ones

  bool contains(int32_t slot) const { return entries_.contains(slot); }
  const Entry& at(int32_t slot) const { return entries_.at(slot); }
  void measured(int32_t slot, double step_ms);
  void set_permanent(int32_t slot, bool is_permanent) { entries_.at(slot).is_permanent = is_permanent; }
  void forget_times();  // call when conditions have changed
  void forget_time(int32_t slot) { entries_.at(slot).step_ms.reset(); }

  // The ready strategy whose last block was fastest; nothing if none was measured.
  std::optional<int32_t> fastest() const;

  std::optional<int32_t> preparing() const { return preparing_; }
  int waited() const { return waited_; }  // reports since the prepare command, while it is not done
  std::optional<int32_t> next_to_prepare() const;
  bool is_idle() const { return queue_.empty() && !preparing_; }

  struct Prepared {
    int32_t slot;
    Entry entry;  // not ready if some rank failed or it took too long; then it is released
  };
  std::optional<Prepared> follow(const core::StepReport& report);

  // Commands to announce now. The slot in force is not dropped.
  Command start_preparing();
  std::optional<Command> next_drop(int32_t in_force);

 private:
  core::TraitsTable traits_;
  std::map<int32_t, Entry> entries_;
  int32_t next_slot_ = 0;
  std::multimap<int64_t, int32_t> queue_;  // by earliest step
  std::optional<int32_t> preparing_;
  int waited_ = 0;
  std::deque<int32_t> drops_;
};

}  // namespace gradtune::tuner
