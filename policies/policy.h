// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The contract of a policy: it is asked for candidates and told how fast they ran. It never measures, waits, writes or
// talks to other ranks, holds no clock and no thread, and draws random numbers only from the seed it was made with:
// same knowledge and same measurements give the same proposals. It runs on rank 0 only; its strategies are broadcast.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/compressor.h"
#include "engine/core/gradient_table.h"
#include "engine/core/measurement.h"
#include "engine/core/result.h"
#include "engine/core/strategy.h"
#include "policies/cost_table.h"

namespace gradtune::policies {

// One operation that ran: step `step` of a bucket's program, in us since any moment.
struct TimedStep {
  int32_t bucket = 0;
  int32_t step = 0;  // -1: the scale before a sum of gradients
  double begin_us = 0, end_us = 0;
};

// What one training step took under a strategy.
struct TimedStrategy {
  core::Strategy strategy = {};
  std::vector<TimedStep> steps = {};
};

// What a policy may know of the job. Times are medians over steps of the maximum over ranks.
struct Knowledge {
  core::GradientTable table = {};  // backward order, with ready times
  int world_size = 1;
  int ranks_per_node = 0;  // 0: there are no levels
  core::Fidelity fidelity = core::Fidelity::half;
  std::vector<core::CompressorSpec> codecs = {};    // those that fidelity and allow-list admit, "none" first
  std::vector<core::CompressorTraits> traits = {};  // of all known compressors
  int host_threads = 0;                             // workers for placement `host`; 0: only `device` is to be proposed
  int64_t memory_bytes = INT64_MAX;                 // that a strategy may have for residuals and payloads
  Machine machine = {};
  double baseline_ms = 0;  // step time of the baseline
  double compute_ms = 0;   // forward and backward of the slowest rank
  // What operations took on rank 0 in steps so far, of the baselines and of what was proposed. Policies that have a
  // cost model fit it to them.
  std::vector<TimedStrategy> timed = {};
};

struct Candidate {
  core::Strategy strategy;
  std::string label;  // for people and journals: "topk:0.01 gather, 3 buckets"
  // Its step time as the policy expected it before it ran, where the policy has a model.
  std::optional<double> predicted_ms = {};
};

struct Proposal {
  std::vector<Candidate> candidates;  // best first
  bool final = false;                 // true: these go to the race; false: measure each, tell, and ask again
};

class Policy {
 public:
  virtual ~Policy() = default;

  virtual std::string_view name() const = 0;

  // Never empty unless final; a final proposal may be empty: nothing seems worth a race, and the baseline stays.
  // All strategies pass core::validate for the table.
  virtual Proposal propose(const Knowledge& knowledge) = 0;

  // How fast a candidate of the last proposal ran (smaller is better). Candidates that could not run are not told.
  virtual void learn(const core::Measurement& measurement) = 0;
};

struct PolicyOptions {
  uint64_t seed = 0;
  std::vector<Candidate> fixed = {};  // what policy `fixed` proposes
  int most_finalists = 7;             // candidates of a final proposal, the baseline not counted
};

// The table of this family (table.cc).
struct PolicyRow {
  std::string_view name;
  std::string_view summary;
  std::unique_ptr<Policy> (*make)(const PolicyOptions& options);
};
std::span<const PolicyRow> policy_table();

// An unknown name is an error that lists the known ones.
core::Result<std::unique_ptr<Policy>> make_policy(std::string_view name, const PolicyOptions& options);

}  // namespace gradtune::policies
