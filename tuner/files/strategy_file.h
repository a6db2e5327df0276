// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The strategy file (JSON, schema "gradtune.strategy/2"): a strategy with the model, topology and fidelity it is for
// and the evidence it stands on. The same text is what rank 0 broadcasts. Tensors are named, so a file does not depend
// on the order in which another run finished its gradients; the order of the slices *is* the order of the arena of a
// job that starts from the file. Files are untrusted: within kJobLimits of strict_json.h, unknown and duplicate keys
// refused, every number in a stated range. What can not be shown in a label is replaced.
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

// Errors say where in the file, what was found and what is allowed. The second form is for a file inside of another
// one.
core::Result<StrategyFile> parse_strategy(const JsonValue& value, core::TraitsTable known);
core::Result<StrategyFile> parse_strategy(std::string_view text, core::TraitsTable known);

// The strategy of a file that rank 0 broadcast.
core::Result<policies::Candidate> read_candidate(const std::string& text);

// Whether the file fits this job: model, world size, fidelity, and validate() against the table in the file's order.
// On success returns the table put into the file's order.
core::Result<core::GradientTable> fit(const StrategyFile& file, const core::GradientTable& table, int world_size,
                                      core::Fidelity fidelity, core::TraitsTable known);

}  // namespace gradtune::tuner
