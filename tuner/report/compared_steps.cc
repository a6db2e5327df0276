// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/report/compared_steps.h"

#include <fmt/format.h>

#include <limits>
#include <ranges>
#include <utility>

namespace gradtune::tuner {
namespace {

using Role = ComparedStep::Role;

// The last slot with that label counts, if it has a usable step: a strategy that is planned again gets a new slot.
std::optional<MeasuredStep> measured_under(const JournalFile& journal, const std::string& label, double claimed_ms) {
  const std::optional<double> usual_ms = claimed_ms > 0 ? std::optional(claimed_ms) : std::nullopt;
  for (const auto& [slot, candidate] : std::views::reverse(journal.strategies)) {
    if (candidate.label != label) continue;
    if (auto step = measured_step(journal, slot, usual_ms)) return step;
  }
  return {};
}

TracedStep traced_step(const ComparedStep& compared, const core::Strategy& strategy) {
  TracedStep traced{.name = named(compared.role, fmt::format("{}, step {}", compared.label, compared.measured->step)),
                    .rows = {},
                    .spans = {},
                    .strategy = strategy};
  for (const LaneLines& lane : in_lines(compared.measured->bars, std::numeric_limits<size_t>::max())) {
    for (const std::vector<Bar>& line : lane.lines) {
      for (const Bar& bar : line) {
        TracedSpan span{.row = traced.rows.size(), .name = bar.what, .begin_us = bar.begin_us, .end_us = bar.end_us};
        if (bar.bucket >= 0) {
          span.bucket = bar.bucket;
          span.name += fmt::format(" {}", bar.bucket);
        }
        traced.spans.push_back(std::move(span));
      }
      traced.rows.emplace_back(to_string(lane.lane));
    }
  }
  return traced;
}

}  // namespace

std::string named(Role role, std::string_view what) {
  switch (role) {
    case Role::before: return fmt::format("Before: {}", what);
    case Role::after: return fmt::format("After: {}", what);
    case Role::only: break;
  }
  return std::string(what);
}

std::vector<ComparedStep> compared_steps(const JournalFile& journal, const Standing& standing) {
  if (journal.reports.empty()) return {};
  const auto compared = [&](Role role, const std::string& label, double claimed_ms) {
    return ComparedStep{role, label, claimed_ms, measured_under(journal, label, claimed_ms)};
  };
  const Comparison& claim = standing.comparison;
  const bool is_baseline = standing.label == standing.baseline;
  if (is_baseline) return {compared(Role::only, standing.label, claim.baseline_ms)};
  if (standing.state == Standing::State::pinned) return {compared(Role::only, standing.label, 0)};
  return {compared(Role::before, standing.baseline, claim.baseline_ms),
          compared(Role::after, standing.label, claim.committed_ms)};
}

std::vector<TracedStep> traced(const std::vector<ComparedStep>& compared,
                               const std::map<int32_t, policies::Candidate>& strategies) {
  std::vector<TracedStep> steps;
  for (const ComparedStep& each : compared) {
    if (each.measured) steps.push_back(traced_step(each, strategies.at(each.measured->slot).strategy));
  }
  return steps;
}

}  // namespace gradtune::tuner
