// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The report of one step to the tuner, and the tuner's measurements for a policy: plain data, already reduced over
// ranks.
#pragma once

#include <cstdint>
#include <string_view>
#include <tuple>

#include "engine/core/fields.h"

namespace gradtune::core {

// The loss of compressing a bucket in one step on one rank, as defined in exec/loss_sample.h; negative: not known.
struct BucketLoss {
  double error = -1;     // norm(p - decode(encode(p))) / norm(p)
  double residual = -1;  // norm(residual) / norm(gradient), before the step
  double gradient = -1;  // norm(gradient), before the step
  // The norm of p minus payload and next residual, divided by norm(p): rounding, unless something is broken
  // (exec/balance.h). Known in some steps.
  double imbalance = -1;
};

// A bucket whose compression is out of its limits (tuner/error_budget.h).
struct Excess {
  enum class Kind : uint8_t {
    none,
    error,     // over its budget
    residual,  // grows without bound relative to the gradient
    broken,    // payload and next residual do not add up to the input
  } kind = Kind::none;
  int32_t bucket = 0;
  double value = 0, allowed = 0;  // of the quantity in BucketLoss

  bool operator==(const Excess&) const = default;
};
std::string_view to_string(Excess::Kind kind);  // "none" | "error" | "residual" | "broken"

// One training step, reduced over ranks. A report reaches the tuner one step later, so it names the strategy that it
// is about.
struct StepReport {
  int64_t step = 0;
  int32_t slot = 0;  // of the strategy that ran in this step (tuner/agreement.h)
  // Wall time between the same point of successive steps, the mean of the longest and the shortest over ranks. Over
  // many steps it is the same on all ranks. On a link with a delay, one rank may be ahead of another by up to that
  // delay. They change places in each step, so the longest time would be too long in all of them.
  double step_ms = 0;
  // Time of forward and backward without gradtune's own work, largest and smallest over ranks. A slow rank shows
  // here and is not blamed on the strategy.
  double compute_ms_max = 0, compute_ms_min = 0;
  int32_t slowest_rank = -1;  // the rank whose computation took longest; -1: not known
  // The total time of all collectives, on the rank where it was least: on the others it includes waiting for a peer.
  // It is the mean with the step before, as a rank that is ahead in one step is behind in the next. Under one strategy,
  // changes of this come from the link. 0: there were no collectives.
  double comm_ms = 0;
  // The time for which the training thread itself worked on gradients (copies, compression, decompression), largest
  // over ranks. No computation hides it. 0: not known.
  double work_ms = 0;
  Excess excess = {};     // the worst on any rank
  bool finite = true;     // no rank met a NaN or Inf in a gradient
  bool excluded = false;  // evaluation, checkpoint, skipped update, or preparation of a strategy: not to be scored
  bool prepared = true;   // every rank has prepared all requested strategies
  bool failed = false;    // some rank could not prepare the strategy requested last

  bool operator==(const StepReport&) const = default;
};

// The report of a step with one of its `updates`, each of which took the same time to compute. The exchange, which is
// what the slowest rank did not compute, stays. So steps of rounds compare with each other, however many updates they
// have.
StepReport with_one_update(const StepReport& report, int64_t updates);

// All fields of a report, for the formats that hold one (control words are made in tuner/agreement.cc).
inline constexpr auto kStepReportFields = std::tuple{
    Field{"step", &StepReport::step, FieldKind::step},
    Field{"slot", &StepReport::slot, FieldKind::slot},
    Field{"step_ms", &StepReport::step_ms, FieldKind::ms},
    Field{"compute_ms_max", &StepReport::compute_ms_max, FieldKind::ms},
    Field{"compute_ms_min", &StepReport::compute_ms_min, FieldKind::ms},
    Field{"slowest_rank", &StepReport::slowest_rank, FieldKind::rank, /*is_optional=*/true},
    Field{"comm_ms", &StepReport::comm_ms, FieldKind::ms, /*is_optional=*/true},
    Field{"work_ms", &StepReport::work_ms, FieldKind::ms, /*is_optional=*/true},
    Field{"finite", &StepReport::finite, FieldKind::flag},
    Field{"excluded", &StepReport::excluded, FieldKind::flag},
    Field{"prepared", &StepReport::prepared, FieldKind::flag},
    Field{"failed", &StepReport::failed, FieldKind::flag},
    Field{"excess", &StepReport::excess, FieldKind::excess, /*is_optional=*/true},
};

// The speed of a candidate: the median of `steps` steps in ms; smaller is better.
struct Measurement {
  uint64_t strategy_hash = 0;
  double step_ms = 0;
  int steps = 0;

  bool operator==(const Measurement&) const = default;
};

}  // namespace gradtune::core
