// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The step time of a recorded job elsewhere: on other links, and on other numbers of ranks. The cost model of the job
// (recorded_job.h) is moved there. Collectives are ring and pairwise algorithms, every rank computes as in the
// recording, and the bytes and messages of a step grow accordingly. It leaves open how answers are shown
// (what_if_words.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/core/result.h"
#include "tuner/forecast/recorded_job.h"

namespace gradtune::tuner {

constexpr int kMostWhatIfRanks = 4096;
constexpr size_t kMostWhatIfs = 256;  // of one call, so that it takes seconds

struct WhatIf {
  core::Ranks ranks = {};
  Link link = {};

  bool operator==(const WhatIf&) const = default;
};

// Lists of values, all combinations of which are asked for; an empty list stands for the value of the recording.
struct WhatIfs {
  std::vector<int> world_sizes = {};
  std::optional<int> ranks_per_node = {};
  std::vector<double> rates_mbit = {};
  std::vector<double> delays_us = {};
};

// All combinations, those of the first world size first. Errors name the option of `gradtune what-if`, the value and
// the values allowed. One rank on each node is the same as no nodes.
core::Result<std::vector<WhatIf>> combinations(const WhatIfs& asked, const RecordedJob& job);

struct WhatIfAnswer {
  WhatIf what = {};
  Forecast baseline = {}, choice = {};
  // The rates of programs that send inside nodes first are known. Otherwise all programs run over all ranks.
  bool knows_levels = true;

  // The share of the baseline's time that the choice saves.
  double gain() const { return 1 - choice.ms / baseline.ms; }
};

// The costs at that place. A byte's and a message's cost beyond that of the recorded link stays. More ranks make more
// messages, each of which takes as long as on the idle link that the job probed before its first step.
void move(const WhatIf& what, const RecordedJob& job, policies::CostTable& cost);

// None if the model lacks a rate that the baseline needs.
std::optional<WhatIfAnswer> answer(const WhatIf& what, const RecordedJob& job);

// "200mbit", "25gbit", "1.5kbit" in Mbit/s, and "50us", "5ms", "1s" in us. Errors give the text and the forms allowed.
core::Result<double> parse_rate_mbit(const std::string& text);
core::Result<double> parse_delay_us(const std::string& text);

}  // namespace gradtune::tuner
