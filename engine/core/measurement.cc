// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/core/measurement.h"

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

namespace {

// Does not compile if the list lacks a member.
[[maybe_unused]] void count_members(const StepReport& report) {
  [[maybe_unused]] const auto& [a, b, c, d, e, f, g, h, i, j, k, l] = report;
  static_assert(std::tuple_size_v<decltype(kStepReportFields)> == 12);
}

}  // namespace
}  // namespace gradtune::core
