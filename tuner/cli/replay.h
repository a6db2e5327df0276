// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// `gradtune replay`: plans for a recorded job under a cost model and says what a step would take.
#pragma once

#include <optional>
#include <string>

#include "engine/core/result.h"
#include "policies/cost/op_sizes.h"
#include "policies/cost/published_cost.h"

namespace gradtune::tuner {

struct ReplayOptions {
  std::string trace;  // file
  std::string policy = "auto";
  std::string cost = "published";  // linear:A_US:B_NS, or a file (cost_file.h)
  policies::PublishedCost published = {};
  // For a cost file: what may be used, and other ranks than those it was made on (0: the same).
  core::Fidelity fidelity = core::Fidelity::lossy;
  core::Ranks ranks = {.size = 0};
  // The step goes on into the next forward pass, which takes this share of backward's time; nothing: it ends with
  // backward and communication.
  std::optional<double> forward = {};
  std::string chrome;  // file for the predicted step as a Chrome trace, with a cost file; empty: none
  bool json = false;
};

// What it prints: a JSON object {time_ms, planning_ms, error_bound, buckets: [{first, last, option}]}, or a table for
// people. time_ms runs from the first ready gradient to the end of communication and backward; no plan that leaves in
// the order of readiness takes less than time_ms / (1 + error_bound), where the planner knows such a bound (null where
// it does not). Tensors are counted from 0, `last` is inclusive; a bucket with part of a tensor has `slices` [{tensor,
// offset, length}] too. Options of the published model are told by number, those of a cost file as programs, and its
// table also says what the executor's rules make of the plan (policies/cost/timeline.h).
//
// Under linear:A_US:B_NS a message of x elements takes A + B x on one channel, and nothing is compressed. With a
// forward pass, time_ms runs to its end, and the object is {time_ms, planning_ms, buckets: [{slices}]}, in the order in
// which they are sent: a message leaves when all of its gradients are ready and all messages before it have left; the
// forward pass takes for each tensor the share of its gap in backward, in reverse order, and waits for its last slice.
core::Result<std::string> replay(const ReplayOptions& options);

}  // namespace gradtune::tuner
