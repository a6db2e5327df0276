// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Steps as pictures. They have spans in the format of Chrome's about:tracing and Perfetto (JSON, "Trace Event
// Format").
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/core/gradient_table.h"
#include "engine/core/strategy.h"
#include "policies/cost/timeline.h"

namespace gradtune::tuner {

// A period of work.
struct TracedSpan {
  size_t row = 0;  // of its step
  std::string name;
  double begin_us = 0, end_us = 0;
  std::optional<int32_t> bucket = {};  // of the step's strategy
  // Viewers draw spans with such a name outside of the rows, one row for each. Other spans of a row must not overlap.
  std::string travel = {};

  bool operator==(const TracedSpan&) const = default;
};

// A group of rows. Several steps of a file begin at the same time.
struct TracedStep {
  std::string name;  // empty: viewers need no name, as there is no other step
  std::vector<std::string> rows;
  std::vector<TracedSpan> spans;
  core::Strategy strategy;
};

std::string chrome_trace(std::span<const TracedStep> steps);

// A predicted step, with a row for each resource. While messages travel, their link is already busy with others.
TracedStep traced(std::span<const policies::Span> spans, const core::Strategy& strategy,
                  const core::GradientTable& table);

}  // namespace gradtune::tuner
