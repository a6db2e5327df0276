// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What is known of a running job: its gradients, ranks and limits, and what operations took so far. Plain data that the
// tuner fills in and that policies plan from.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/core/compressor.h"
#include "engine/core/gradient_table.h"
#include "engine/core/option.h"
#include "engine/core/strategy.h"
#include "policies/cost/cost_table.h"
#include "policies/cost/inserted_steps.h"

namespace gradtune::policies {

// One operation that ran: step `step` of a bucket's program, or one that compiling inserted (inserted_steps.h), in us
// since any moment.
struct TimedOp {
  int32_t bucket = 0;
  int32_t step = 0;
  double begin_us = 0, end_us = 0;
  // Of a collective: what this rank's link carried of it in one direction, as core::link_bytes; -1: not known, and what
  // is usual counts. Of a copy: its bytes.
  int64_t bytes = -1;
};

// What one training step took under a strategy.
struct TimedRun {
  core::Strategy strategy = {};
  std::vector<TimedOp> steps = {};
};

// What a policy may know of the job. Times are medians over steps of the maximum over ranks.
struct Knowledge {
  core::GradientTable table = {};  // backward order, with ready times
  core::Ranks ranks = {};
  core::Fidelity fidelity = core::Fidelity::half;
  // That fidelity and allow-list admit and that may run soon, "none" first.
  std::vector<core::CompressorSpec> codecs = {};
  core::TraitsTable traits = {};     // of all known compressors
  int host_threads = 0;              // workers for placement `host`; 0: only `device` is to be proposed
  int64_t memory_bytes = INT64_MAX;  // that a strategy may have for residuals and payloads
  Machine machine = {};
  // Whether buckets may be due at the next forward pass: the user allows it and the job can be deferred.
  bool forward_overlap = false;
  double baseline_ms = 0;  // step time of the baseline
  double compute_ms = 0;   // forward and backward of the slowest rank
  // What operations took on rank 0 in steps so far, of the baselines and of what was proposed. Policies that have a
  // cost model fit it to them.
  std::vector<TimedRun> timed = {};
};

}  // namespace gradtune::policies
