// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The strategy file (JSON, schema "gradtune.strategy/2"): a strategy with its model, topology, fidelity and
// evidence. Rank 0 broadcasts the same text. Tensors are named, so a file does not depend on the order in which
// another run finished its gradients. The order of the slices *is* the order of the arena of a job that starts from
// the file. Files are untrusted: they are within kJobLimits of strict_json.h, unknown and duplicate keys are
// refused, and every number is in a stated range. Characters that a label cannot show are replaced.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/compressor.h"
#include "engine/core/gradient_table.h"
#include "engine/core/result.h"
#include "engine/core/strategy.h"
#include "policies/space/candidate.h"
#include "tuner/comparison.h"
#include "tuner/files/file_io.h"
#include "tuner/files/strict_json.h"

namespace gradtune::tuner {

struct Evidence : Comparison {
  int64_t steps = 0;      // of tuning
  std::string date = {};  // ISO 8601; may be left empty

  bool operator==(const Evidence&) const = default;
};

struct StrategyFile {
  uint64_t model = 0;  // GradientTable::fingerprint()
  int world_size = 1;
  core::Fidelity fidelity = core::Fidelity::half;
  std::string label = {};
  core::Strategy strategy = {};           // positions refer to `tensors`
  std::vector<std::string> tensors = {};  // names in arena order
  std::optional<Evidence> evidence = {};

  bool operator==(const StrategyFile&) const = default;
};

// The file of a strategy for a job with that table, without evidence.
StrategyFile strategy_file(const core::GradientTable& table, int world_size, core::Fidelity fidelity, std::string label,
                           const core::Strategy& strategy);

std::string to_json(const StrategyFile& file);

// Errors give the place in the file, the value found and the values allowed. The second form is for a file inside
// another one.
core::Result<StrategyFile> parse_strategy(const JsonValue& value, core::TraitsTable known);
core::Result<StrategyFile> parse_strategy(std::string_view text, core::TraitsTable known);

// Reads the strategy of a file that rank 0 broadcast.
core::Result<policies::Candidate> read_candidate(const std::string& text);

// Checks that the file fits this job: model, world size, fidelity, and validate() against the table in the file's
// order. On success it returns the table put into the file's order.
core::Result<core::GradientTable> fit(const StrategyFile& file, const core::GradientTable& table, int world_size,
                                      core::Fidelity fidelity, core::TraitsTable known);

}  // namespace gradtune::tuner
