// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The steps that answer if tuning helped: one of the baseline, and one of the strategy in force at the end.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tuner/files/chrome_trace.h"
#include "tuner/files/journal_reader.h"
#include "tuner/report/measured_step.h"
#include "tuner/standing.h"

namespace gradtune::tuner {

struct ComparedStep {
  enum class Role : uint8_t { before, after, only } role = Role::only;
  std::string label = {};                     // of the strategy
  double claimed_ms = 0;                      // a step, by the job's own decision; 0: there is no such figure
  std::optional<MeasuredStep> measured = {};  // near that figure. Nothing: its operations were timed in no usable step

  bool operator==(const ComparedStep&) const = default;
};
// "Before: WHAT", "After: WHAT", or only WHAT.
std::string named(ComparedStep::Role role, std::string_view what);

// The baseline (before) and what runs at the end (after), or only one if both are the same. `standing`: of the job
// when the journal ended. Empty before the job's first step.
std::vector<ComparedStep> compared_steps(const JournalFile& journal, const Standing& standing);

// The measured ones as groups of rows, with the lanes as rows. `strategies`: those of the journal.
std::vector<TracedStep> traced(const std::vector<ComparedStep>& compared,
                               const std::map<int32_t, policies::Candidate>& strategies);

}  // namespace gradtune::tuner
