// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/core/measurement.h"

#include <algorithm>

namespace gradtune::core {

std::string_view to_string(Excess::Kind kind) {
  switch (kind) {
    case Excess::Kind::none: return "none";
    case Excess::Kind::error: return "error";
    case Excess::Kind::residual: return "residual";
    case Excess::Kind::broken: return "broken";
  }
  return "unknown";
}

StepReport with_one_update(const StepReport& report, int64_t updates) {
  StepReport one = report;
  if (updates <= 1) return one;
  const auto divisor = static_cast<double>(updates);
  one.compute_ms_max /= divisor;
  one.compute_ms_min /= divisor;
  one.step_ms = one.compute_ms_max + std::max(0.0, report.step_ms - report.compute_ms_max);
  return one;
}

namespace {

// Does not compile if the list lacks a member.
[[maybe_unused]] void count_members(const StepReport& report) {
  [[maybe_unused]] const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m] = report;
  static_assert(std::tuple_size_v<decltype(kStepReportFields)> == 13);
}

}  // namespace
}  // namespace gradtune::core
