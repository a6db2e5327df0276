// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// `gradtune replay`: plans for a recorded job under a cost model and prints the expected step time.
#pragma once

#include <optional>
#include <string>

#include "engine/core/result.h"
#include "policies/cost/op_sizes.h"
#include "policies/cost/published_cost.h"

namespace gradtune::tuner {

struct ReplayOptions {
  std::string trace;  // file name
  std::string policy = "auto";
  std::string cost = "published";  // linear:A_US:B_NS, or a file (cost_file.h)
  policies::PublishedCost published = {};
  // For a cost file: the fidelity allowed, and a number of ranks other than that of the file (0: the same).
  core::Fidelity fidelity = core::Fidelity::lossy;
  core::Ranks ranks = {.size = 0};
  // The step continues into the next forward pass, which takes this share of backward's time; nothing: it ends with
  // backward and communication.
  std::optional<double> forward = {};
  std::string chrome;  // file for the predicted step as a Chrome trace, which needs a cost file; empty: none
  bool json = false;
};

// The text to print is a JSON object {time_ms, backward_ms, planning_ms, error_bound, buckets: [{first, last,
// option}]}, or a table for people.
// - time_ms runs from the first ready gradient to the end of communication and backward. No plan that sends buckets in
//   the order of readiness takes less than time_ms / (1 + error_bound).
// - backward_ms is the time of the last ready gradient.
// - error_bound is null if the planner knows no such bound.
// - Tensors are counted from 0, `last` is inclusive. A bucket with part of a tensor also has `slices` [{tensor, offset,
//   length}].
// - Options of the published model are given by number, those of a cost file as programs.
// - For a cost file and for linear: there is also timeline_ms, the step time by the executor's rules
//   (policies/cost/timeline.h).
//
// Under linear:A_US:B_NS a message of x elements takes A + B x on one channel, and nothing is compressed. With a
// forward pass, time_ms runs to its end, and the object is {time_ms, backward_ms, planning_ms, buckets: [{slices}]},
// in the order in which they are sent. A message leaves when all of its gradients are ready and all messages before
// it have left. For each tensor the forward pass takes the share of the tensor's gap in backward, in reverse order,
// and waits for the tensor's last slice.
core::Result<std::string> replay(const ReplayOptions& options);

}  // namespace gradtune::tuner
