// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// `gradtune replay`: plans for a recorded job under a cost model and says what a step would take.
#pragma once

#include <string>

#include "engine/core/result.h"
#include "policies/cost/op_sizes.h"
#include "policies/cost/published_cost.h"

namespace gradtune::tuner {

struct ReplayOptions {
  std::string trace;  // file
  std::string policy = "auto";
  std::string cost = "published";  // or a file (cost_file.h)
  policies::PublishedCost published = {};
  // For a cost file: what may be used, and other ranks than those it was made on (0: the same).
  core::Fidelity fidelity = core::Fidelity::lossy;
  core::Ranks ranks = {.size = 0};
  std::string chrome;  // file for the predicted step as a Chrome trace, with a cost file; empty: none
  bool json = false;
};

// What it prints: a JSON object {time_ms, planning_ms, error_bound, buckets: [{first, last, option}]}, or a table for
// people. time_ms runs from the first ready gradient to the end of communication and backward; no plan that leaves in
// the order of readiness takes less than time_ms / (1 + error_bound), where the planner knows such a bound (null where
// it does not). Tensors are counted from 0, `last` is inclusive; a bucket with part of a tensor has `slices` [{tensor,
// offset, length}] too. Options of the published model are told by number, those of a cost file as programs, and its
// table also says what the executor's rules make of the plan (policies/cost/timeline.h).
core::Result<std::string> replay(const ReplayOptions& options);

}  // namespace gradtune::tuner
