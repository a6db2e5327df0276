// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Knowledge of a running job: its gradients, ranks and limits, and the measured times of operations. Plain data that
// the tuner fills in and that policies plan with.
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

// One operation that ran: step `step` of a bucket's program, or one that compiling inserted (inserted_steps.h), in
// us from a common start.
struct TimedOp {
  int32_t bucket = 0;
  int32_t step = 0;
  double begin_us = 0, end_us = 0;
  // For a collective: the bytes that this rank's link carried in one direction, as core::link_bytes; -1: unknown,
  // and the usual number is used. For a copy: its bytes.
  int64_t bytes = -1;
};

// The operation times of one training step under a strategy.
struct TimedRun {
  core::Strategy strategy = {};
  std::vector<TimedOp> steps = {};
};

// The knowledge of a job that a policy may use. Times are medians over steps; those of whole steps are over ranks as in
// core::StepReport.
struct Knowledge {
  core::GradientTable table = {};  // backward order, with ready times
  core::Ranks ranks = {};
  core::Fidelity fidelity = core::Fidelity::half;
  // Compressors that fidelity and allow-list admit and that may run soon, "none" first.
  std::vector<core::CompressorSpec> codecs = {};
  core::TraitsTable traits = {};     // of all known compressors
  int host_threads = 0;              // workers for placement `host`; 0: only `device` may be proposed
  int64_t memory_bytes = INT64_MAX;  // limit of a strategy's residuals and payloads
  Machine machine = {};
  // True if buckets may be due at the next forward pass: the user allows it and the job supports it.
  bool forward_overlap = false;
  double baseline_ms = 0;  // step time of the baseline
  double compute_ms = 0;   // forward and backward of the slowest rank
  // Times of operations on rank 0 in earlier steps, of the baselines and of proposed strategies. Policies with a
  // cost model fit it to them.
  std::vector<TimedRun> timed = {};
};

}  // namespace gradtune::policies
