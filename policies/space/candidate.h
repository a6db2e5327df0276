// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A strategy that may be worth running, with its name.
#pragma once

#include <optional>
#include <string>

#include "engine/core/strategy.h"

namespace gradtune::policies {

struct Candidate {
  core::Strategy strategy;
  std::string label;  // for people and journals: "topk:0.01 gather, 3 buckets"
  // The step time that the policy predicted before it ran, if the policy has a model.
  std::optional<double> predicted_ms = {};
};

}  // namespace gradtune::policies
