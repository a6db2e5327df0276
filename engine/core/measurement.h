// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What one step tells the tuner, and what the tuner tells a policy: plain data, already reduced over ranks.
#pragma once

#include <cstdint>
#include <string_view>
#include <tuple>

#include "engine/core/fields.h"

namespace gradtune::core {

// What compressing a bucket lost in one step on one rank, as exec/loss_sample.h says; negative: not known.
struct BucketLoss {
  double error = -1;     // norm(p - decode(encode(p))) / norm(p)
  double residual = -1;  // norm(residual) / norm(gradient), before the step
  double gradient = -1;  // norm(gradient), before the step
  // How far what was sent and what was kept are from p, in relation to norm(p): rounding, unless something is broken
  // (exec/balance.h). Known in some steps.
  double imbalance = -1;
};

// A bucket whose compression is not what it should be (tuner/error_budget.h).
struct Excess {
  enum class Kind : uint8_t {
    none,
    error,     // over its budget
    residual,  // runs away against the gradient
    broken,    // what is sent and kept is not what was given
  } kind = Kind::none;
  int32_t bucket = 0;
  double value = 0, allowed = 0;  // of BucketLoss

  bool operator==(const Excess&) const = default;
};
std::string_view to_string(Excess::Kind kind);  // "none" | "error" | "residual" | "broken"

// One training step, reduced over ranks. A report reaches the tuner one step later, so it names the strategy it speaks
// of.
struct StepReport {
  int64_t step = 0;
  int32_t slot = 0;    // of the strategy that ran in this step (tuner/agreement.h)
  double step_ms = 0;  // wall time between the same point of successive steps, maximum over ranks
  // Forward and backward without gradtune's own work, over ranks: a slow rank shows here and is not blamed on the
  // strategy.
  double compute_ms_max = 0, compute_ms_min = 0;
  int32_t slowest_rank = -1;  // whose computation took longest; -1: not known
  // What collectives took, all of them added up, on the rank where that was least: the others waited for a peer as
  // well. Under one strategy this moves with the link. 0: there were none.
  double comm_ms = 0;
  Excess excess = {};     // the worst on any rank
  bool finite = true;     // no rank met a NaN or Inf in a gradient
  bool excluded = false;  // evaluation, checkpoint, skipped update, or a strategy was prepared: not to be scored
  bool prepared = true;   // every rank has prepared all that was asked for
  bool failed = false;    // some rank could not prepare what was asked for last

  bool operator==(const StepReport&) const = default;
};

// All fields of a report, for the formats that hold one (control words are made in tuner/agreement.cc).
inline constexpr auto kStepReportFields = std::tuple{
    Field{"step", &StepReport::step, FieldKind::step},
    Field{"slot", &StepReport::slot, FieldKind::slot},
    Field{"step_ms", &StepReport::step_ms, FieldKind::ms},
    Field{"compute_ms_max", &StepReport::compute_ms_max, FieldKind::ms},
    Field{"compute_ms_min", &StepReport::compute_ms_min, FieldKind::ms},
    Field{"slowest_rank", &StepReport::slowest_rank, FieldKind::rank, /*is_optional=*/true},
    Field{"comm_ms", &StepReport::comm_ms, FieldKind::ms, /*is_optional=*/true},
    Field{"finite", &StepReport::finite, FieldKind::flag},
    Field{"excluded", &StepReport::excluded, FieldKind::flag},
    Field{"prepared", &StepReport::prepared, FieldKind::flag},
    Field{"failed", &StepReport::failed, FieldKind::flag},
    Field{"excess", &StepReport::excess, FieldKind::excess, /*is_optional=*/true},
};

// How fast a candidate ran: the median of `steps` steps in ms, smaller is better.
struct Measurement {
  uint64_t strategy_hash = 0;
  double step_ms = 0;
  int steps = 0;

  bool operator==(const Measurement&) const = default;
};

}  // namespace gradtune::core
