// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Whole strategies for a recorded job under a cost model, by the name of the planner. A policy proposes strategies
// and gets measurements; a planner has only the model.
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
  // From the first ready gradient to the end of communication and backward or, if the job's buckets may be due at
  // the next forward pass, to the end of that pass.
  double end_us = 0;
  // No strategy in the search space, of whole atoms in the order of readiness (label_search.h), ends before end_us /
  // (1 + error_bound). None if the planner has no bound.
  std::optional<double> error_bound = {};
};

// The joint search stores the cost of every message of neighbouring tensors, in memory that grows with the square of
// their number. With more tensors `auto` searches about half as many pieces, and `exhaustive` is not available.
constexpr size_t kMostTensors = 500;

// The input of a planner. The model must have been made for the dtypes of the table.
struct PlannedJob {
  const CostModel& model;
  // The table and, for planners that try programs as a policy does, the compressors of the model's options.
  Knowledge knowledge = {};
  // For the joint search: buckets are made of about this many pieces, with large tensors cut and small neighbours
  // merged, so that a plan takes about a millisecond with any model. 0: the tensors themselves, up to kMostTensors.
  int pieces = 0;
};

// The table of planners (planner.cc).
struct PlannerRow {
  std::string_view name;
  std::string_view summary;
  Planned (*plan)(const PlannedJob& job);
};
std::span<const PlannerRow> planner_table();

// An unknown name, or a table with more tensors than the planner can handle, is an error that says what is allowed.
core::Result<Planned> plan(std::string_view planner, const PlannedJob& job);

}  // namespace gradtune::policies
