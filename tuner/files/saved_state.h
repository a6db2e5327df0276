// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The state of a job between two steps, as plain data for a checkpoint: of every rank, and of the tuner on rank 0.
// Files are untrusted: they are within 1 GiB and 40 million entries (strict_json.h), unknown and missing keys are
// refused, every number is in a stated range, and parts that do not fit together are refused. It leaves open what
// the executor carries (residuals and codecs' state), which are bytes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/compressor.h"
#include "engine/core/result.h"
#include "engine/exec/residual_owners.h"
#include "tuner/agreement.h"
#include "tuner/error_budget.h"
#include "tuner/files/replay_log.h"
#include "tuner/files/strategy_file.h"
#include "tuner/job.h"

namespace gradtune::tuner {

struct SavedRank {
  int64_t step = 0;  // steps done
  int64_t nonfinite_steps = 0;
  uint32_t random_step = 0;                        // counter of random compressors, which they use with seed and
                                                   // element
  bool order_learned = false;                      // the order of the gradients is known
  std::map<int32_t, core::Content> contents = {};  // of sparse gradients, by position in the strategies' tensors
  bool committed = false;                          // the strategy in force is not on trial
  LocalStep local = {};                            // this rank's report on its last step, for the next control word
  Agreement::State agreement = {};
  ErrorBudget::State errors = {};     // this rank's record of compression errors
  exec::ResidualOwners holders = {};  // of this rank's residuals
  // Strategies in all slots that this rank has prepared, including the one in force. Their tensors are in the order
  // of the arena.
  std::map<int32_t, StrategyFile> strategies = {};

  const StrategyFile& in_force() const { return strategies.at(agreement.slot); }
  bool operator==(const SavedRank&) const = default;
};

std::string to_json(const SavedRank& saved);
core::Result<SavedRank> parse_saved_rank(std::string_view text, core::TraitsTable known);

struct SavedTuner {
  Job job;                                     // the table with the ready times so far
  std::vector<int64_t> ready_count = {};       // of each tensor: number of backward passes in its mean
  std::optional<StrategyFile> committed = {};  // if anything is
  std::map<int32_t, int> timed = {};           // steps of each slot whose operation times the tuner received
  bool timed_in_observation = true;            // true if the last of them was in the observation
};

// The history is stored beside it, as bytes.
std::string to_json(const SavedTuner& saved);
core::Result<SavedTuner> parse_saved_tuner(std::string_view text, core::TraitsTable known);

// Checks that a tuner of one job would decide like a tuner of the other. The error names the first difference.
core::Status same_job(const Job& saved, const Job& now);

}  // namespace gradtune::tuner
