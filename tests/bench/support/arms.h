// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The strategies that the benchmark of predictions compares, each with the prediction of a live policy's model.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "policies/space/candidate.h"
#include "policies/step_time_predictor.h"

namespace gradtune::bench {

struct Arm {
  // - auto: the choice of policy `auto`
  // - baseline: the faster one
  // - fusion: one option for the whole model, the best number of buckets by the model
  // - tensor: one bucket for each tensor: the best option for all of them by the model, and Espresso's choice for
  //   each
  // - pinned: for any prediction
  std::string kind;
  policies::Candidate candidate;
  std::optional<double> first_ms = {};              // predicted after the first steps, in which only the baselines ran
  bool was_tried = false;                           // by the policy: its measured time is in the model
  std::vector<std::vector<double>> blocks_ms = {};  // measured step times
  std::vector<policies::TimedOp> timed = {};        // of one of these steps
};

// Distinct strategies of kinds fusion, tensor and pinned, with `predicted_ms` by the model.
std::vector<Arm> other_arms(const policies::Knowledge& knowledge, const policies::StepTimePredictor& forecast);

}  // namespace gradtune::bench
