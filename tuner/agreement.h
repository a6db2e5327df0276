// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// How all ranks run the same strategy in every step: a pure state machine, one per rank, without clock, thread or
// socket.
//
// A strategy lives in a *slot* (a small number). Rank 0 announces at most one command per step inside the control
// collective, which all ranks complete. What was announced in step s is in force from step s + 1. Every rank also
// contributes a hash of all that decides its next step (epoch, slot in force, the table of slots). So all ranks find a
// rank that differs in that step, before any payload of the next one is sent. (A command that is sent beside the
// collectives may reach ranks in different steps, however early it is sent. agreement_model_test.cc checks all orders
// of events.)
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>

#include "engine/core/measurement.h"
#include "engine/core/result.h"

namespace gradtune::tuner {

struct Command {
  enum class Kind : uint8_t {
    keep,     // nothing changes
    prepare,  // the text that follows is a strategy for `slot`; cancels one still under way
    run,      // the strategy in `slot` is in force from the next step; the epoch grows by one. Where some rank has not
              // prepared it until then, nothing changes on any
    drop,     // `slot` is not needed any more, whether preparing it succeeded or not; never the slot in force
    commit,   // as run, and tuning is over: the strategy in `slot` stays, residuals parked for others may drain
  } kind = Kind::keep;
  int32_t slot = 0;
  int64_t bytes = 0;  // of a text that follows by broadcast from rank 0

  bool operator==(const Command&) const = default;
};

// What one rank knows at the end of a step's backward pass. The end of a step is only seen in the next one: all but
// `finite` speaks of the step before.
struct LocalStep {
  int64_t step = -1;  // that step; -1: there was none
  double step_ms = 0;
  double compute_ms = 0;
  double comm_ms = 0;        // of all collectives; 0: there were none
  int32_t rank = 0;          // who says so
  core::Excess excess = {};  // of that step, where it was finite on all ranks
  bool finite = true;        // of the step under way
  bool excluded = false;     // that step is not to be scored
  bool not_dense = false;    // of the step under way: this rank had no gradient of some tensor, or a sparse one
  uint64_t alike = 0;        // hash of what else ranks must have alike in the step under way

  bool operator==(const LocalStep&) const = default;
};

// What of it a checkpoint keeps: all but what the next step finds out anew.
inline constexpr auto kLocalStepFields = std::tuple{
    core::Field{"step", &LocalStep::step, core::FieldKind::step},
    core::Field{"step_ms", &LocalStep::step_ms, core::FieldKind::ms},
    core::Field{"compute_ms", &LocalStep::compute_ms, core::FieldKind::ms},
    core::Field{"comm_ms", &LocalStep::comm_ms, core::FieldKind::ms},
    core::Field{"rank", &LocalStep::rank, core::FieldKind::rank},
    core::Field{"excess", &LocalStep::excess, core::FieldKind::excess},
    core::Field{"finite", &LocalStep::finite, core::FieldKind::flag},
    core::Field{"excluded", &LocalStep::excluded, core::FieldKind::flag},
};

// The control word: reduced over ranks by maximum, element by element. Values of which the minimum matters too are sent
// negated as well. All values are exact in a double; a time that is none counts as 0, and a step without one is
// excluded.
constexpr int kControlWords = 29;
using ControlWord = std::array<double, kControlWords>;

// What the reduced word tells every rank alike.
struct Verdict {
  core::StepReport report;  // of the step before; for the tuner on rank 0
  bool finite = true;       // of this step: no rank met a NaN or Inf
  bool not_dense = false;   // some rank had no gradient of some tensor, or a sparse one
  Command command;          // to be carried out now, by all ranks; keep in place of a run that cannot be
  std::optional<int32_t> failed_rank = {};  // the last of those that could not prepare what was asked for, once known
};

// Ranks whose value differs from rank 0's: "1, 3".
std::string differing_ranks(std::span<const uint64_t> values);

class Agreement {
 public:
  // All ranks start in `slot` with the strategy of that hash, epoch 1. Other slots that are ready from the start are
  // told by prepared() before the first step.
  Agreement(int32_t slot, uint64_t strategy_hash);

  // All that it knows between two steps, for a checkpoint.
  struct Pending {
    int32_t slot = 0;
    bool answered = false;
    std::optional<uint64_t> hash = {};

    bool operator==(const Pending&) const = default;
  };
  struct State {
    int32_t slot = 0;
    int64_t epoch = 1;
    std::map<int32_t, uint64_t> slots = {};  // those that all ranks can run
    std::optional<Pending> pending = {};
    std::optional<int32_t> failed_slot = {};
    bool begun = false;  // of the step before, of which reports speak
    int32_t last_slot = 0;
    bool last_finite = true;

    bool operator==(const State&) const = default;
  };
  explicit Agreement(State state);
  const State& state() const { return state_; }

  // `announced` is rank 0's command; other ranks pass a Command{}.
  ControlWord contribute(const LocalStep& local, const Command& announced) const;

  // An error (mismatch) when ranks differ: all ranks get it in the same step; the caller then names them by gathering
  // collectives of their step, of what else must be alike and of `identity()`.
  core::Result<Verdict> receive(const LocalStep& local, const ControlWord& reduced);

  // This rank's outcome of a prepare command: the hash of what it received, or nothing when preparing failed. Reports
  // say prepared = false until all ranks gave theirs. Then the slot can be run, or, where any rank failed, is empty on
  // all of them, and reports say failed = true until it is dropped or the next prepare. An answer to what was taken
  // back is ignored, so slot numbers are not to be used twice.
  void prepared(int32_t slot, std::optional<uint64_t> strategy_hash);

  int32_t slot() const { return state_.slot; }  // in force
  int64_t epoch() const { return state_.epoch; }
  uint64_t identity() const;  // hash of epoch, slot in force, table of slots and what is being prepared

 private:
  uint64_t agreed_hash() const;
  std::optional<int32_t> settle_pending(const ControlWord& reduced);  // the rank that failed, if any did
  core::Status carry_out(Command& command);

  State state_;
};

}  // namespace gradtune::tuner
