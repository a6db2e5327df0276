// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Decides which slot runs in which step. Blocks of steps follow one another. They are planned ahead, because a
// command takes `lead` steps to come into force, and extended or cut short as reports come in. It leaves open what
// the blocks are for.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <vector>

#include "engine/core/measurement.h"

namespace gradtune::tuner {

struct Block {
  int32_t slot = 0;
  int dropped = 1;  // steps at its beginning that are not scored: the transient after a switch
  int scored = 4;
  // Two longer steps cut the block short, and so does one that takes more than twice as long (no spike does).
  // Dropped steps count as well.
  double limit_ms = std::numeric_limits<double>::infinity();
  int patience = std::numeric_limits<int>::max();  // most steps added to replace steps that cannot be scored
};

// The result of a block.
struct Score {
  int32_t slot = 0;
  std::optional<double> step_ms;  // median; nothing if less than half of the steps could be scored
  int steps = 0;
  int64_t begin = 0, end = 0;  // the steps that it ran in, `end` exclusive
};

class Schedule {
 public:
  Schedule(int lead, int32_t slot);

  // Blocks run in the order in which they were added.
  void add(const Block& block);
  // The slot that runs when no block is left.
  void rest(int32_t slot) { rest_ = slot; }
  // Removes the block that was added last, if it is of that slot and has not begun. Returns true if it had been put
  // in force already: that switch did not take place.
  bool take_back(int32_t slot);
  // Removes the blocks of that slot that were not put in force. A block in force is cut short: it runs only until
  // another slot can be in force.
  void give_up(int32_t slot);
  // Removes all blocks; the caller puts `slot` in force.
  void stop(int32_t slot);

  // Call with the report of each step in turn. Then next_slot() returns the slot to put in force `lead` steps later,
  // if that is a change.
  void record(const core::StepReport& report);
  std::optional<int32_t> next_slot();

  int32_t slot() const { return slot_; }  // the slot in force, once all announced changes have come into force
  bool is_done() const { return waiting_.empty() && running_.empty(); }  // all data are in
  bool is_waiting() const { return !waiting_.empty(); }                  // some block was not yet put in force
  std::vector<Score> take_scores();  // of the blocks that ended since the last call, in order

 private:
  struct Running {
    Block block;
    int64_t begin;
    int64_t end = std::numeric_limits<int64_t>::max();  // first step after it, once known
    int length;                                         // steps it is to run
    int seen = 0;
    int extended = 0;
    int slow = 0;
    std::vector<double> step_ms;
  };
  void observe(Running& running, const core::StepReport& report) const;
  void finish_front();

  const int lead_;
  int64_t step_ = -1;  // of the last report
  int32_t slot_;
  int32_t slot_before_;  // the last change
  int32_t rest_;
  std::deque<Block> waiting_;
  std::deque<Running> running_;  // put in force, not all reports in
  std::vector<Score> scores_;
};

}  // namespace gradtune::tuner
