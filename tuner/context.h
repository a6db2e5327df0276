// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The state that all phases of the tuner share (phase.h): the strategies and the blocks that run, the evidence so
// far, and the log of decisions. The core owns it and passes it to the phase with every call. A phase keeps for
// itself the state that no other phase needs. The functions here are the questions that several phases ask; they
// lead from no phase to another.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/rng.h"
#include "tuner/audit_clock.h"
#include "tuner/bans.h"
#include "tuner/budget.h"
#include "tuner/contenders.h"
#include "tuner/schedule.h"
#include "tuner/slot_table.h"
#include "tuner/tuner.h"

namespace gradtune::tuner {

// The baselines are in slots 0 ... count - 1, one or two of them.
struct Baselines {
  int32_t count = 1;
  int32_t faster = 0;                 // gains are measured against it
  std::optional<int32_t> rival = {};  // the other one, if it may be the faster one
  bool are_measured = false;          // false again from a new look at the job until they are measured anew

  bool contains(int32_t slot) const { return slot < count; }
  // The baselines to confirm a winner against. A winner that is only faster than the slower one gains nothing.
  std::vector<int32_t> compared() const;
};

// The last search, or the one under way: the strategies that it leaves out, and the reasons if it finds nothing.
struct SearchRecord {
  int64_t horizon = 0;                     // strategies that may run only after that step are left out
  std::optional<int> left_out_until = {};  // the first step in which one of these may run
  bool is_any_measured = false;
  std::string why_not_prepared = {};  // reason of the last failed preparation; empty: none, or not known
  bool has_new_content = false;       // the gradients' content, which this search did not know

  void begin(int64_t until_step);  // a search begins, and leaves out strategies that may run only after that step
  // Tells if the search leaves out a strategy that may run from that step on. If so, that step is noted, and a
  // search follows then.
  bool leaves_out(int earliest);
  std::string why_nothing() const;  // why no strategy was kept, for people
};

// The decisions that nobody has taken yet. The core sets step and stage, which every decision carries.
struct Diary {
  int64_t step = -1;  // of the last report
  Stage stage = Stage::observe;
  std::vector<Decision> decisions = {};
};

struct Context {
  const TunerOptions options;
  const Tuner::MakePolicy make_policy;
  const core::Rng rng;
  policies::Knowledge knowledge;
  SlotTable slots;
  Schedule schedule;
  Budget budget;  // of this tuning
  Baselines baselines;
  Bans bans;
  Contenders contenders = {};
  AuditClock clock = {};
  SearchRecord search = {};
  Diary diary = {};
  Outcome outcome = {};
  std::optional<int32_t> committed = {};  // confirmed, and not dropped since
  std::optional<Command> at_once = {};    // to be announced before anything else
  int confirmations = 0;                  // begun so far

  void decide(Decision::What what, std::string label, double value);

  bool is_pinned() const { return options.budget_steps == 0; }  // the first strategy in force stays
  const policies::Candidate& candidate(int32_t slot) const { return *slots.at(slot).candidate; }
  // The strategy that stays if nothing else is decided.
  int32_t kept() const { return committed.value_or(baselines.faster); }
  // Tells if that strategy exceeded its error budget, so that it does not run again.
  bool is_over(int32_t slot) const { return slots.contains(slot) && bans.has_strategy(slots.at(slot).hash); }
  // The baseline; before it is known which one is faster, the one with 16 bits if there is one.
  int32_t sound_baseline() const;

  int earliest_step_of(int32_t slot) const;
  // Strategies that may run now go first, in the order in which they were asked for.
  void prepare(int32_t slot);
  // Drops all blocks and puts that strategy in force. With `commit`, residuals parked for others may drain.
  void switch_to(int32_t slot, Command::Kind kind);
  // Another tuning begins, with the whole budget.
  void renew_budget() { budget = Budget(options.budget_steps, options.budget_share); }
};

}  // namespace gradtune::tuner
