// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Whole strategies for a recorded job under a cost model, by the name of the planner. Where a policy proposes and is
// told what was measured, a planner has only the model.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "engine/core/result.h"
#include "policies/cost/cost_model.h"
#include "policies/policy.h"

namespace gradtune::policies {

struct Planned {
  core::Strategy strategy;
  // From the first ready gradient to the end of communication and backward; where the job's buckets may be due at the
  // next forward pass, to the end of that.
  double end_us = 0;
  // No strategy that is searched, of whole atoms in the order of readiness (label_search.h), ends before
  // end_us / (1 + error_bound); nothing where the planner does not know.
  std::optional<double> error_bound = {};
};

// The joint search holds what every message of neighbouring tensors costs, in memory that grows with the square of
// their number. Of more tensors `auto` searches about half as many pieces, and `exhaustive` is not to be had.
constexpr size_t kMostTensors = 500;

// What a planner works on: a model that was made for the dtypes of the table.
struct PlannedJob {
  const CostModel& model;
  // The table, and for planners that walk programs as a policy does the compressors of the model's options.
  Knowledge knowledge = {};
  // Of the joint search: about as many pieces are what buckets are made of, large tensors cut and small neighbours
  // merged, for a plan in about a millisecond whatever the model. 0: the tensors as they are, as far as kMostTensors.
  int pieces = 0;
  int64_t most_replays = 1'000'000;  // of a step, by Espresso's offload
};

// The table of this family (planner.cc).
struct PlannerRow {
  std::string_view name;
  std::string_view summary;
  Planned (*plan)(const PlannedJob& job);
};
std::span<const PlannerRow> planner_table();

// An unknown name, or a table of more tensors than the planner can do, is an error that says what is allowed.
core::Result<Planned> plan(std::string_view planner, const PlannedJob& job);

}  // namespace gradtune::policies
