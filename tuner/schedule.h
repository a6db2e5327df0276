// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Which slot runs in which step. Blocks of steps follow one another. They are planned ahead, because a command takes
// `lead` steps to come into force, and extended or cut short as reports come in. Leaves open what the blocks are for.
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
  // Two longer steps cut the block short, or one that takes more than twice as long (no spike does). Steps that are
  // dropped count as well.
  double limit_ms = std::numeric_limits<double>::infinity();
  int patience = std::numeric_limits<int>::max();  // most steps added in place of steps that cannot be scored
};

// What came out of a block.
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
  // What runs when no block is left.
  void rest(int32_t slot) { rest_ = slot; }
  // Forgets the block that was added last, if it is of that slot and has not begun. Returns whether it had been put in
  // force already: that switch did not take place.
  bool take_back(int32_t slot);
  // Forgets the blocks of that slot that were not put in force. One that was is cut short: it runs only until something
  // else can be in force.
  void give_up(int32_t slot);
  // Forgets all blocks; `slot` is put in force by other means.
  void stop(int32_t slot);

  // Call with the report of each step in turn. Then next_slot() says what to put in force `lead` steps later, if that
  // is a change.
  void record(const core::StepReport& report);
  std::optional<int32_t> next_slot();

  int32_t slot() const { return slot_; }  // in force, once all that was said has come into force
  bool is_done() const { return waiting_.empty() && running_.empty(); }  // all data are in
  bool is_waiting() const { return !waiting_.empty(); }                  // some block was not yet put in force
  std::vector<Score> take_scores();  // of the blocks that ended since the last call, in order

 private:
  struct Running {
    Block block;
    int64_t begin;
    int64_t end = std::numeric_limits<int64_t>::max();  // first step of what follows, once that is known
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
