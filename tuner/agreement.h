// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Makes all ranks run the same strategy in every step. It is a pure state machine, one per rank, without clock,
// thread or socket.
//
// A strategy lives in a *slot* (a small number). Rank 0 announces at most one command per step inside the control
// collective, which all ranks complete. A command announced in step s is in force from step s + 1. Every rank also
// contributes a hash of everything that decides its next step (epoch, slot in force, table of slots). So all ranks
// notice a rank that differs in the same step, before any payload of the next step is sent. (A command sent beside
// the collectives may reach ranks in different steps, however early it is sent. agreement_model_test.cc checks all
// orders of events.)
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
    prepare,  // the text that follows is a strategy for `slot`; cancels a preparation under way
    run,      // the strategy in `slot` is in force from the next step, and the epoch grows by one. If some rank has
              // not prepared it by then, nothing changes on any rank
    drop,     // `slot` is not needed any more, whether preparing it succeeded or not; never the slot in force
    commit,   // like run, and tuning is over: the strategy in `slot` stays, and residuals parked for others may drain
  } kind = Kind::keep;
  int32_t slot = 0;
  int64_t bytes = 0;  // of a text that rank 0 broadcasts next

  bool operator==(const Command&) const = default;
};

// A rank that trains in rounds (hooks/rounds.h) tells this with an exchange. Reduced over ranks, it holds on some rank.
struct RoundState {
  bool has_updates = false;  // it made updates since the exchange before
  bool goes_on = false;      // it has not come to the end of a round that it ends early

  bool operator==(const RoundState&) const = default;
};

// The state of one rank at the end of a step's backward pass. The end of a step is only seen in the next one, so
// fields are about the step before, unless they say otherwise.
struct LocalStep {
  int64_t step = -1;  // the step before; -1: there was none
  double step_ms = 0;
  double compute_ms = 0;
  double comm_ms = 0;        // time of all collectives, the mean with the step before that; 0: there were none
  double work_ms = 0;        // work on gradients on the training thread
  int64_t updates = 1;       // of the program in the step; more than 1 in rounds
  int32_t rank = 0;          // this rank
  core::Excess excess = {};  // of the step before, if it was finite on all ranks
  bool finite = true;        // of the step under way
  bool excluded = false;     // the step before is not to be scored
  bool not_dense = false;    // of the step under way: this rank had no gradient of some tensor, or a sparse one
  bool new_buffers = false;  // of the step under way: this rank's buffers changed since they were sent
  RoundState round = {};     // of the step under way
  uint64_t alike = 0;        // hash of everything else that all ranks must share in the step under way

  bool operator==(const LocalStep&) const = default;
};

// The fields that a checkpoint keeps: all but those that the next step finds out anew.
inline constexpr auto kLocalStepFields = std::tuple{
    core::Field{"step", &LocalStep::step, core::FieldKind::step},
    core::Field{"step_ms", &LocalStep::step_ms, core::FieldKind::ms},
    core::Field{"compute_ms", &LocalStep::compute_ms, core::FieldKind::ms},
    core::Field{"comm_ms", &LocalStep::comm_ms, core::FieldKind::ms},
    core::Field{"rank", &LocalStep::rank, core::FieldKind::rank},
    core::Field{"excess", &LocalStep::excess, core::FieldKind::excess},
    core::Field{"finite", &LocalStep::finite, core::FieldKind::flag},
    core::Field{"excluded", &LocalStep::excluded, core::FieldKind::flag},
    core::Field{"updates", &LocalStep::updates, core::FieldKind::step, /*is_optional=*/true},
    core::Field{"work_ms", &LocalStep::work_ms, core::FieldKind::ms, /*is_optional=*/true},
};

// The control word. It is reduced over ranks by maximum, element by element. Values whose minimum matters too are
// also sent negated. All values are exact in a double. An invalid time counts as 0. A step without a time is excluded,
// and so is one of which ranks made different numbers of updates.
constexpr int kControlWords = 36;
using ControlWord = std::array<double, kControlWords>;

// The content of the reduced word, which is the same on every rank.
struct Verdict {
  core::StepReport report;   // of the step before; for the tuner on rank 0
  bool finite = true;        // of this step: no rank met a NaN or Inf
  bool not_dense = false;    // some rank had no gradient of some tensor, or a sparse one
  bool new_buffers = false;  // some rank's buffers changed
  RoundState round;          // of this step
  int64_t updates = 1;       // of the step before, the largest number
  Command command;           // all ranks must carry it out now; keep instead of a run that is not possible
  std::optional<int32_t> failed_rank = {};  // the last rank that could not prepare the strategy, once it is known
};

// Ranks whose value differs from rank 0's: "1, 3".
std::string differing_ranks(std::span<const uint64_t> values);

class Agreement {
 public:
  // All ranks start in `slot` with the strategy of that hash, epoch 1. Call prepared() before the first step for
  // other slots that are ready from the start.
  Agreement(int32_t slot, uint64_t strategy_hash);

  // The whole state between two steps, for a checkpoint.
  struct Pending {
    int32_t slot = 0;
    bool answered = false;
    std::optional<uint64_t> hash = {};

    bool operator==(const Pending&) const = default;
  };
  struct State {
    int32_t slot = 0;
    int64_t epoch = 1;
    std::map<int32_t, uint64_t> slots = {};  // slots that all ranks can run
    std::optional<Pending> pending = {};
    std::optional<int32_t> failed_slot = {};
    bool begun = false;  // a step before exists, which reports can describe
    int32_t last_slot = 0;
    bool last_finite = true;

    bool operator==(const State&) const = default;
  };
  explicit Agreement(State state);
  const State& state() const { return state_; }

  // `announced` is rank 0's command; other ranks pass a Command{}.
  ControlWord contribute(const LocalStep& local, const Command& announced) const;

  // Returns a mismatch when ranks differ; all ranks get it in the same step. The caller then names the differing
  // ranks by gathering the collectives of their step, the hash of everything else they must share, and `identity()`.
  core::Result<Verdict> receive(const LocalStep& local, const ControlWord& reduced);

  // This rank's outcome of a prepare command: the hash of the received strategy, or nothing if preparing failed.
  // Reports say prepared = false until all ranks have answered. Then the slot can be run. If any rank failed, the
  // slot is empty on all ranks, and reports say failed = true until it is dropped or the next prepare. An answer to
  // a command that was taken back is ignored, so slot numbers must not be used twice.
  void prepared(int32_t slot, std::optional<uint64_t> strategy_hash);

  int32_t slot() const { return state_.slot; }  // in force
  int64_t epoch() const { return state_.epoch; }
  uint64_t identity() const;  // hash of the epoch, the slot in force, the table of slots and the preparation under way

 private:
  uint64_t agreed_hash() const;
  std::optional<int32_t> settle_pending(const ControlWord& reduced);  // returns the rank that failed, if any did
  core::Status carry_out(Command& command);

  State state_;
};

}  // namespace gradtune::tuner
