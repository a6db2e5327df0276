// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Everything that a tuner is told of a job before its first step. Its decisions depend only on this and on the
// reports of its steps. A running job takes it from the user and the model, a replayed one from its journal.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/compressor.h"
#include "engine/core/gradient_table.h"
#include "engine/core/result.h"
#include "engine/core/topology.h"
#include "policies/policy.h"
#include "tuner/tuner.h"

namespace gradtune::tuner {

struct Job {
  core::GradientTable table = {};  // in the order of the arena
  core::Ranks ranks = {};
  core::Fidelity fidelity = core::Fidelity::half;
  std::vector<core::CompressorSpec> codecs = {};  // admitted ones, "none" first
  std::string codecs_from = {};                   // why these, for people; empty: not known
  int host_threads = 0;
  int64_t memory_bytes = INT64_MAX;  // for residuals and payloads
  bool forward_overlap = false;      // buckets may be due at the next forward pass (policies::Knowledge)
  policies::Machine machine = {};    // the number of host cores is `host_threads` above
  std::string policy = "mergecomp";
  TunerOptions tuning = {};
  std::optional<policies::Candidate> imported = {};
};

// The knowledge of the job for policies, before its first step.
policies::Knowledge knowledge_of(const Job& job);

// Makes a tuner with the baselines of the job. An unknown policy is an error that lists the known ones.
core::Result<std::unique_ptr<Tuner>> make_tuner(const Job& job);

}  // namespace gradtune::tuner
