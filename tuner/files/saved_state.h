// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What a job knows between two steps, as plain data that goes to and comes from a checkpoint: of every rank, and of the
// tuner on rank 0. Files are untrusted: within 1 GiB and 40 million entries (strict_json.h), unknown and missing keys
// refused, every number in a stated range, and what does not fit together refused. Leaves open what the executor
// carries (residuals and codecs' state), which are bytes.
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
  uint32_t random_step = 0;                        // what random compressors draw from, with seed and element
  bool order_learned = false;                      // of the gradients
  std::map<int32_t, core::Content> contents = {};  // of those that are sparse, by position in the strategies' tensors
  bool committed = false;                          // what is in force is not on trial
  LocalStep local = {};                            // what this rank says of its last step in the next control word
  Agreement::State agreement = {};
  ErrorBudget::State errors = {};     // what this rank has seen of compression
  exec::ResidualOwners holders = {};  // of its residuals
  // Of every slot that this rank has prepared; their tensors are in the order of the arena. That in force is among
  // them.
  std::map<int32_t, StrategyFile> strategies = {};

  const StrategyFile& in_force() const { return strategies.at(agreement.slot); }
  bool operator==(const SavedRank&) const = default;
};

std::string to_json(const SavedRank& saved);
core::Result<SavedRank> parse_saved_rank(std::string_view text, core::TraitsTable known);

struct SavedTuner {
  Job job;                                     // the table with the ready times so far
  std::vector<int64_t> ready_count = {};       // of each tensor: backward passes that they are the mean of
  std::optional<StrategyFile> committed = {};  // if anything is
  std::map<int32_t, int> timed = {};           // steps of each slot of whose operations the tuner was told
  bool timed_in_observation = true;            // the last of them
};

// The history goes beside it, as bytes.
std::string to_json(const SavedTuner& saved);
core::Result<SavedTuner> parse_saved_tuner(std::string_view text, core::TraitsTable known);

// Whether a tuner of that job would decide as one of the other does: the error names the first thing that differs.
core::Status same_job(const Job& saved, const Job& now);

}  // namespace gradtune::tuner
