// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The contract of a policy: it proposes candidates and gets their measured times. It never measures, waits, writes
// or talks to other ranks, has no clock and no thread, and draws random numbers only from its initial seed. Equal
// knowledge and equal measurements give equal proposals. It runs on rank 0 only; its strategies are broadcast.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/measurement.h"
#include "engine/core/result.h"
#include "policies/cost/knowledge.h"
#include "policies/space/candidate.h"

namespace gradtune::policies {

struct Proposal {
  std::vector<Candidate> candidates;  // best first
  bool final = false;                 // true: these go to the race; false: measure each, call learn(), and ask again
};

class Policy {
 public:
  virtual ~Policy() = default;

  virtual std::string_view name() const = 0;

  // Never empty unless final. An empty final proposal means that nothing seems worth a race, and the baseline stays.
  // All strategies pass core::validate for the table.
  virtual Proposal propose(const Knowledge& knowledge) = 0;

  // Takes the measured time of a candidate of the last proposal (smaller is better). Candidates that could not run
  // are skipped.
  virtual void learn(const core::Measurement& measurement) = 0;
};

struct PolicyOptions {
  uint64_t seed = 0;
  std::vector<Candidate> fixed = {};  // the candidates of policy `fixed`
  int most_finalists = 7;             // candidates of a final proposal, without the baseline
};

// The table of policies (table.cc).
struct PolicyRow {
  std::string_view name;
  std::string_view summary;
  std::unique_ptr<Policy> (*make)(const PolicyOptions& options);
};
std::span<const PolicyRow> policy_table();

// An unknown name is an error that lists the known ones.
core::Result<std::unique_ptr<Policy>> make_policy(std::string_view name, const PolicyOptions& options);

}  // namespace gradtune::policies
