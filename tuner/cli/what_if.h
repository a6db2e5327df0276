// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// `gradtune what-if`: says how long a step of a recorded job would take on other links, or on other numbers of ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/core/result.h"
#include "tuner/forecast/what_if.h"

namespace gradtune::tuner {

struct WhatIfOptions {
  std::string journal;  // file name
  std::vector<int> world_sizes = {};
  std::optional<int> ranks_per_node = {};
  std::vector<std::string> rates = {}, delays = {};  // with their units
  std::optional<core::Fidelity> fidelity = {};       // by default that of the job
  bool json = false;
};

// The text to print: sentences and a table with a row for each combination. With `json` it is an object {recorded:
// {world_size, ranks_per_node, rate_mbit, delay_us}, strategies: [{label, steps, measured_ms, expected_ms}], guessed:
// [compressors], settings: [{world_size, ranks_per_node, rate_mbit, delay_us, baseline_ms, baseline_error_ms, auto_ms,
// auto_error_ms, auto}]}, where `auto` is a strategy in words.
core::Result<std::string> what_if(const WhatIfOptions& options);

}  // namespace gradtune::tuner
