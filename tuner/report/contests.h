// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The comparisons of strategies: measurements of a search, races with the blocks of each arm, and tests on pairs of
// blocks. It leaves open how they are shown.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "policies/space/candidate.h"
#include "tuner/decision.h"
#include "tuner/schedule.h"

namespace gradtune::tuner {

// A candidate that a search measured in a block of steps. Times in ms a step.
struct Trial {
  int64_t step = 0;  // in which the measurement was known
  std::string label;
  std::optional<double> predicted_ms = {}, measured_ms = {};  // by its policy's model; measured_ms is nothing if it
                                                              // could not be scored

  bool operator==(const Trial&) const = default;
};

// A block that ended, and its purpose. Blocks of one episode were asked for during one visit to a stage.
struct EndedBlock {
  Stage stage = Stage::observe;
  bool is_observed = false;  // the baselines were observed before, in this stage
  int episode = 0;
  Score score = {};
};

// An interval of a log-ratio.
struct Interval {
  double low = 0, high = 0;

  bool operator==(const Interval&) const = default;
};

struct RaceArm {
  int32_t slot = 0;
  std::vector<Score> blocks = {};         // one for each of its rounds
  std::optional<double> log_ratio = {};   // of its step time to the baseline's, mean over rounds; below 0: faster
  std::optional<Interval> interval = {};  // 95 %, by Student's t; spread pooled over the arms
  bool has_won = false;
};

struct RaceRecord {
  int64_t begin = 0, end = 0;      // steps, `end` exclusive
  std::vector<RaceArm> arms = {};  // the baseline, then those that stayed longest, then the faster ones
  int rounds = 0;
};

// A strategy against the baseline, or both baselines, on pairs of blocks in random order.
struct PairTest {
  enum class Kind : uint8_t { confirmation, audit } kind = Kind::confirmation;
  enum class Verdict : uint8_t { open, committed, not_confirmed, dropped, kept } verdict = Verdict::open;
  int64_t begin = 0, end = 0;  // steps; an open test ends at the last known step
  std::string label = {};
  int wanted = 0;                                  // pairs; 0: not known
  std::vector<int32_t> slots = {};                 // the strategy's, then those of the baselines
  std::vector<std::vector<double>> pairs_ms = {};  // medians of blocks, in the order of the slots
  std::optional<double> gain = {}, gain_low = {};  // the lower bound decides
};

// By slot.
using Strategies = std::map<int32_t, policies::Candidate>;

std::vector<Trial> trials_of(std::span<const Decision> decisions);

// Finds races among blocks. Slots 0 ... `baselines` - 1 are baselines.
std::vector<RaceRecord> races_of(std::span<const EndedBlock> blocks, std::span<const Decision> decisions,
                                 const Strategies& strategies, int32_t baselines);

// Tests have no pairs if there are no blocks. `last_step` is the last one that the job reported.
std::vector<PairTest> tests_of(std::span<const EndedBlock> blocks, std::span<const Decision> decisions,
                               int32_t baselines, int64_t last_step);

}  // namespace gradtune::tuner
